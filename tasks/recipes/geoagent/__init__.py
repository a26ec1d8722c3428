"""GeoAgent (3.1): a chain of thought in three levels, by a model that sees the picture or from a person's notes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from schemas.errors import InputError
from schemas.messages import ChatReply, Message
from schemas.settings.synthesize import SynthesizeSettings
from tasks.agent.attempt import Sampling
from tasks.agent.environment import Ask
from tasks.agent.prompt import Budgets, Prompt
from tasks.recipes.geoagent.form import (
    DIRECT,
    NORMALISE,
    QUESTION,
    SYSTEM,
    addresses_of,
    gold,
    judge,
    reasoned_gold,
    schema,
)
from tasks.recipes.geoagent.masking import EVALUATION
from tasks.recipes.geoagent.reward import REWARD
from tasks.recipes.recipe import Recipe, Writer, WriterContext
from tasks.services.chat import Chat

__all__ = ["EVALUATION", "RECIPE"]

MAX_CHARS = 8000  # of one picture's notes; the rest is left out
REVIEW = "review"  # in place of a file: what people wrote in the review site


def read_notes(path: str) -> pl.DataFrame:
    """image_id and notes, one row a picture; InputError in one line for a file that is none."""
    file = Path(path)
    # Of a csv everything is text: an id that looks like a number stays as it is.
    readers: dict[str, Callable[[Path], pl.DataFrame]] = {
        ".csv": lambda path: pl.read_csv(path, infer_schema=False),
        ".jsonl": pl.read_ndjson,
        ".parquet": pl.read_parquet,
    }
    if file.suffix not in readers:
        raise InputError(f"synthesize.notes: {path} is none of {', '.join(readers)}")
    if not file.is_file():
        raise InputError(f"synthesize.notes: there is no file {path}")
    try:
        table = readers[file.suffix](file)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"synthesize.notes: {path} cannot be read ({type(error).__name__})") from None
    for column in ("image_id", "notes"):
        if column not in table.columns:
            raise InputError(f"synthesize.notes: {path} has no column '{column}'; it has {', '.join(table.columns)}")
        if table.schema[column] != pl.String:
            raise InputError(f"synthesize.notes: column '{column}' of {path} must be text")
    return (
        table.select("image_id", pl.col("notes").str.strip_chars().str.slice(0, MAX_CHARS))
        .filter(pl.col("notes").str.len_chars() > 0)
        .unique("image_id", keep="first", maintain_order=True)
    )


_FORMAT = {"type": "json_schema", "json_schema": {"name": "chain_of_thought", "strict": True, "schema": schema()}}


class LevelsWriter:
    """One reply, held to the form; with `notes` the model reads them in place of the picture."""

    def __init__(self, chat: Chat, role: str, sampling: Sampling, notes: str | None = None) -> None:
        self._chat, self._role, self._sampling, self._notes = chat, role, sampling, notes

    async def __call__(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> ChatReply:
        question = messages if self._notes is None else [{"role": "user", "content": NORMALISE + self._notes}]
        reply = await self._chat.complete(self._role, question, response_format=_FORMAT, **self._sampling.options())
        return ChatReply(_plain(reply.text), (), reply.finish_reason, reply.usage, reply.model)


def _plain(text: str) -> str:
    """The object written one way, without a code fence; any other text stays as it is."""
    inner = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    try:
        return json.dumps(json.loads(inner), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _writer(context: WriterContext) -> tuple[str, Ask]:
    settings = context.settings
    if context.notes is not None:
        return "notes", LevelsWriter(context.chat, settings.normalizer, context.sampling, context.notes)
    return "levels", LevelsWriter(context.chat, settings.agent, context.sampling)


def _roles(settings: SynthesizeSettings) -> tuple[str, ...]:
    return (settings.agent if settings.notes is None else settings.normalizer,)


def _notes(settings: SynthesizeSettings, written: pl.DataFrame) -> pl.DataFrame | None:
    """Notes of the file that the settings name, or those of the review site, each picture's newest."""
    if settings.notes is None:
        return None
    if settings.notes != REVIEW:
        return read_notes(settings.notes).with_columns(note_id=pl.lit(None, pl.String))
    newest = written.sort("noted_at", "note_id").unique("image_id", keep="last", maintain_order=True)
    return newest.select("image_id", pl.col("notes").str.slice(0, MAX_CHARS), "note_id")


RECIPE = Recipe(
    name="geoagent",
    prompt=Prompt(SYSTEM, QUESTION, budgets=Budgets(calls=0, turns=1), helpers={"normalise": NORMALISE}),
    direct=Prompt(DIRECT, QUESTION, budgets=Budgets(calls=0, turns=1)),
    judge=judge,
    kept_when="the form, and the right country, region and place",
    gold=gold,
    reasoned_gold=reasoned_gold,
    addresses_of=addresses_of,
    writer=Writer(_writer, _roles, forms=_FORMAT),
    reward=REWARD,
    notes=_notes,
)
