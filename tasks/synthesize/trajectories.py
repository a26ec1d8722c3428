"""The step that makes trajectories: labelled pictures in, kept and rejected conversations out.

An item is a picture under a recipe. Attempts at it are made one after the other until enough are kept or all are
used; every attempt is a row, whatever its verdict.
"""

import json
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from schemas.messages import ChatReply, Message, Usage
from schemas.settings.synthesize import SynthesizeSettings
from tasks.agent.attempt import Sampling, SingleAgent, stable_seed
from tasks.agent.environment import Ask, Environment, Trajectory, run_agent
from tasks.agent.picture import Picture, stored_picture
from tasks.agent.prompt import Budgets
from tasks.agent.readings import READ, quotes_pictures, read_pictures
from tasks.agent.service_tools import open_toolbox
from tasks.agent.stored import derived_rows
from tasks.agent.toolbox import Toolbox
from tasks.lake.image_store import ImageStore
from tasks.recipes.recipe import RECIPES, Recipe, WriterContext
from tasks.reward.outcome import Truth, truth_of
from tasks.runtime.computing import computing
from tasks.runtime.labelled import labelled_pictures
from tasks.runtime.runner import Inputs, Kept, Outcome, Rejected, Resources, Row, Stage, WorkerSetup, digest
from tasks.services import Chat, ServiceError
from tasks.synthesize.rejection import Verdict, judge_trajectory, rules_of


def limits(recipe: Recipe, settings: SynthesizeSettings) -> Budgets:
    """The recipe's budgets with what the settings change."""
    chosen: dict[str, Any] = {
        "calls": settings.max_tool_calls,
        "turns": settings.max_turns,
        "tokens": settings.max_total_tokens,
        "seconds": settings.max_seconds,
        "cost_usd": settings.max_cost_usd,
    }
    changed = replace(recipe.prompt.budgets, **{name: value for name, value in chosen.items() if value is not None})
    # More calls than the recipe's need more turns to be made in, unless the settings say how many.
    if settings.max_turns is None and settings.max_tool_calls is not None:
        changed = replace(changed, turns=max(changed.turns, changed.calls + 1))
    return changed


def open_writer(
    recipe: Recipe,
    settings: SynthesizeSettings,
    chat: Chat,
    picture: Picture,
    truth: Truth,
    notes: str | None,
    seed: int,
) -> tuple[str, Ask]:
    """The writer's name and the writer. Only a recipe whose samples are labels is given the truth; it asks no model."""
    sampling = Sampling(settings.temperature, seed, settings.max_tokens)
    if settings.single_agent or (recipe.writer is None and not recipe.writes_gold):
        return "agent", SingleAgent(chat, settings.agent, sampling)
    if recipe.writes_gold:
        return "truth", LabelWriter(recipe.gold(truth, settings.answer_decimals))
    assert recipe.writer is not None
    return recipe.writer.open(WriterContext(chat, recipe.prompt, picture, settings, sampling, notes))


class LabelWriter:
    """One reply: the label in the form the prompt asks for."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def __call__(self, messages: list[Message], tools: object) -> ChatReply:
        return ChatReply(self._text)


@dataclass(frozen=True)
class WorkerContext:
    """What a worker keeps open."""

    settings: SynthesizeSettings
    images: ImageStore
    chat: Chat
    tools: Toolbox


def items(inputs: Inputs, settings: SynthesizeSettings) -> pl.DataFrame:
    """One row for each recipe and picture meant for training, with the truth it is judged by."""
    frames = [_items_of(inputs, settings, settings.recipe, settings.max_images)]
    frames += [_items_of(inputs, settings, recipe, settings.also_images) for recipe in settings.further_recipes]
    return pl.concat(frames)


def _items_of(inputs: Inputs, settings: SynthesizeSettings, recipe: str, max_images: int | None) -> pl.DataFrame:
    chosen = labelled_pictures(inputs, "train", max_images, RECIPES[recipe].pictures)
    addresses = inputs.frame("labels").select("image_id", "country", "region", "city")
    chosen = chosen.join(addresses, on="image_id", how="left")
    notes = RECIPES[recipe].notes(settings, inputs.frame("notes"))
    if notes is not None:
        chosen = chosen.join(notes, on="image_id", how="inner")
    else:
        chosen = chosen.with_columns(notes=pl.lit(None, pl.String), note_id=pl.lit(None, pl.String))
    return chosen.select(
        pl.format("{}:{}", pl.lit(recipe), "image_id").alias("id"),
        *("image_id", "sha256", "extension", "lat", "lon", "country", "region", "city", "notes", "note_id"),
        pl.lit(recipe).alias("recipe"),
        pl.lit(words_digest(RECIPES[recipe], settings)).alias("prompt_hash"),  # other words make another trajectory
        pl.lit(" ".join(rules_of(RECIPES[recipe], settings))).alias("rules"),  # other rules keep other ones
        pl.lit(inputs.snapshot_id).alias("snapshot_id"),
    ).sort("sha256", "image_id")


def words_digest(recipe: Recipe, settings: SynthesizeSettings) -> str:
    """Of a recipe's own, so that other words of one recipe leave the trajectories of the others as they are."""
    forms = recipe.writer.forms if recipe.writer is not None and not settings.single_agent else None
    read = READ if "visible_signs" in rules_of(recipe, settings) else None
    return digest(recipe.prompt.words, forms, read)


def chosen_recipes(settings: SynthesizeSettings) -> tuple[str, ...]:
    """The recipes whose trajectories a run makes."""
    return (settings.recipe, *settings.further_recipes)


def of_other_recipes(settings: SynthesizeSettings, item_id: pl.Expr) -> pl.Expr:
    """Whether a trajectory is of a recipe that the run is not about: it stands."""
    return ~pl.any_horizontal([item_id.str.starts_with(f"{recipe}:") for recipe in chosen_recipes(settings)])


def identity(settings: SynthesizeSettings) -> Any:
    """The settings that decide a trajectory; which recipes and pictures are tried is in the items."""
    decided = settings.identity()
    return {name: value for name, value in decided.items() if name not in ("recipe", "also", "also_images", "notes")}


def roles(settings: SynthesizeSettings) -> tuple[str, ...]:
    """The models that the chosen recipes ask."""
    role_names: list[str] = []
    for recipe in (RECIPES[name] for name in chosen_recipes(settings)):
        if settings.single_agent or (recipe.writer is None and not recipe.writes_gold):
            role_names.append(settings.agent)
        elif recipe.writer is not None:
            role_names += recipe.writer.roles(settings)
        if "visible_signs" in rules_of(recipe, settings):
            role_names.append(settings.observer)
    return tuple(dict.fromkeys(role_names))


def open_context(settings: SynthesizeSettings, setup: WorkerSetup) -> WorkerContext:
    services = setup.connections
    tools = open_toolbox(services, setup.lake.state, settings.result_chars)
    return WorkerContext(settings, setup.lake.images, Chat(services.chat), tools)


async def work(item: Row, context: WorkerContext) -> Outcome:
    """The attempts at one picture, kept or rejected; all are stored. An outage raises, and is tried again."""
    settings, recipe = context.settings, RECIPES[item["recipe"]]
    picture = await stored_picture(context.images, item, settings.view_max_pixels, settings.view_min_pixels)
    truth = truth_of(item)
    rows: list[Row] = []
    files: list[Row] = []
    judged: list[Verdict] = []
    usage = Usage()
    for number in range(1 if recipe.writes_gold else settings.samples):
        writer, trajectory = await _try(item, recipe, picture, truth, number, context)
        verdict, read = await _judge(trajectory, recipe, truth, context)
        judged.append(verdict)
        if verdict.kept and recipe.labelled is not None:
            trajectory = replace(trajectory, messages=tuple(recipe.labelled(trajectory, truth)))
        rows.append(_row(item, recipe, writer, number, picture, trajectory, judged[-1]))
        files += derived_rows(rows[-1]["trajectory_id"], item["image_id"], trajectory.messages)
        usage += trajectory.usage + read
        if sum(verdict.kept for verdict in judged) >= settings.enough:
            break
    if any(verdict.kept for verdict in judged):
        return Kept({"derived": files, "trajectories": rows}, usage)
    last = judged[-1]
    evidence = {
        "attempts": len(judged),
        "reasons": [list(verdict.reasons) for verdict in judged],
        "error_km": [verdict.error_km for verdict in judged],
        "answer": (last.answer or "")[:300],
        "found": list(last.evidence)[:5],
    }
    return Rejected(judged[0].reasons[0], evidence, {"derived": files, "trajectories": rows}, usage)


async def _judge(trajectory: Trajectory, recipe: Recipe, truth: Truth, context: WorkerContext) -> tuple[Verdict, Usage]:
    """The verdict, and what it took: pictures are read again only where that alone can decide."""
    settings = context.settings
    # In a thread: names of a country's cities take a second to load, in which answers that are paid for would not be
    # written down.
    verdict = await computing.run(judge_trajectory, trajectory, recipe, truth, settings)
    if not verdict.kept or "visible_signs" not in rules_of(recipe, settings) or not quotes_pictures(trajectory):
        return verdict, Usage()
    readings, usage = await read_pictures(trajectory, context.chat, settings.observer, settings.max_tokens)
    return await computing.run(judge_trajectory, trajectory, recipe, truth, settings, readings), usage


async def _try(
    item: Row, recipe: Recipe, picture: Picture, truth: Truth, number: int, context: WorkerContext
) -> tuple[str, Trajectory]:
    """One attempt. The environment is not given the item: it can leak neither the truth nor a name into a prompt."""
    seed = stable_seed(recipe.name, item["sha256"], number)
    writer, ask = open_writer(recipe, context.settings, context.chat, picture, truth, item["notes"], seed)
    environment = Environment(
        picture,
        context.tools,
        recipe.prompt,
        limits(recipe, context.settings),
        lambda jpeg: context.images.put(jpeg, "jpg"),
        stop_at_outage=True,
    )
    trajectory = await run_agent(environment, ask)
    if trajectory.outage:
        failed = next(call for call in trajectory.calls if call.outage)
        raise ServiceError(failed.name, "outage", f"{failed.name}: {failed.error}", retryable=True)
    return writer, trajectory


def _row(
    item: Row, recipe: Recipe, writer: str, number: int, picture: Picture, trajectory: Trajectory, judged: Verdict
) -> Row:
    return {
        "trajectory_id": digest(item["image_id"], recipe.name, number),
        "image_id": item["image_id"],
        "snapshot_id": item["snapshot_id"],
        "recipe": recipe.name,
        "prompt_hash": recipe.prompt.digest,
        "writer": writer,
        "note_id": item["note_id"],
        "sample": number,
        "messages_json": json.dumps(trajectory.messages, ensure_ascii=False),
        "tools_json": json.dumps(trajectory.tools, ensure_ascii=False),
        "calls_json": json.dumps([call.as_row() for call in trajectory.calls], ensure_ascii=False),
        "observations": list(trajectory.observations),
        "view_width": picture.width,
        "view_height": picture.height,
        "turns": trajectory.turns,
        "tool_calls": len(trajectory.calls),
        "tool_failures": sum(not call.succeeded for call in trajectory.calls),
        "tool_pattern": " > ".join(call.name for call in trajectory.calls),
        "end_reason": trajectory.end_reason,
        "answer": judged.answer,
        "lat": judged.lat,
        "lon": judged.lon,
        "error_km": judged.error_km,
        "verdict": "kept" if judged.kept else "rejected",
        "reasons": list(judged.reasons),
        "prompt_tokens": trajectory.usage.prompt_tokens,
        "completion_tokens": trajectory.usage.completion_tokens,
        "cost_usd": trajectory.usage.cost_usd,
    }


STAGE = Stage(
    name="synthesize",
    reads=("labels", "images", "notes"),
    writes=("derived", "trajectories"),
    items=items,
    work=work,
    open=open_context,
    resources=Resources(cpus=1, concurrency=8, chunk=2),
    services=("chat", "search", "geocoder"),
    roles=roles,
    version=3,
    identity=identity,
    keeps_history=of_other_recipes,
    snapshot=True,
    unhashed=("snapshot_id", "note_id"),
)
