"""Every judge's verdict on every picture that is fit and that no other picture excludes, and on its copies.

Every verdict is kept, whatever becomes of the picture: thresholds belong to the step that makes the labels. The judge
sees the picture and the question, and neither coordinates, nor address, nor file name.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import polars as pl

from schemas.messages import Message, Usage, text_part
from schemas.settings.curate import JudgeSettings
from tasks.curate.verdict import SYSTEM, BadVerdict, Verdict, parse_verdict, question_about, response_format
from tasks.imaging.images import BadImage, model_view, to_data_uri
from tasks.lake import Lake
from tasks.runtime.runner import Inputs, Kept, Resources, Row, Stage, WorkerSetup
from tasks.services import Chat


@dataclass(frozen=True)
class WorkerContext:
    """What a worker keeps open."""

    chat: Chat
    lake: Lake
    settings: JudgeSettings


def items(inputs: Inputs, settings: JudgeSettings) -> pl.DataFrame:
    """One item for each fit picture without a leak: its bytes, and nothing else the verdict depends on.

    Copies with other bytes are judged too: where the judge rejects the one that would stay, another may.
    """
    again = ("near_duplicate", "mirrored_duplicate")
    is_wanted = pl.col("unfit").is_null() & (pl.col("reason").is_null() | pl.col("reason").is_in(again))
    wanted = inputs.frame("duplicates").filter(is_wanted).select("image_id")
    images = inputs.frame("images", "image_id", "sha256", "extension", "kind", "purpose", "place_id")
    mine = images.filter(to_be_judged(settings)).drop("purpose", "place_id")
    return wanted.join(mine, on="image_id").rename({"image_id": "id"})


def to_be_judged(settings: JudgeSettings) -> pl.Expr:
    """Whether a picture needs a verdict; a published set is never filtered by an opinion."""
    chosen = {"all": pl.lit(True), "collected": pl.col("place_id").is_not_null(), "none": pl.lit(False)}
    return pl.col("purpose").is_null() & chosen[settings.pictures]


def roles(settings: JudgeSettings) -> tuple[str, ...]:
    return settings.models if settings.pictures != "none" else ()


def services(settings: JudgeSettings) -> tuple[str, ...]:
    return ("chat",) if settings.pictures != "none" else ()


def open_context(settings: JudgeSettings, setup: WorkerSetup) -> WorkerContext:
    return WorkerContext(Chat(setup.connections.chat), setup.lake, settings)


async def work(item: Row, context: WorkerContext) -> Kept:
    """A judgement of each model: a verdict, or the problem that prevents one. An outage raises, and is tried again."""
    settings = context.settings
    same: Row = {"image_id": item["id"], "sha256": item["sha256"]}
    try:
        data = await asyncio.to_thread(context.lake.images.read, item["sha256"], item["extension"])
        view, _ = await asyncio.to_thread(model_view, data, settings.view_max_pixels)
    except BadImage as error:
        problem = _problem("corrupt_image", kind=error.kind, detail=error.detail)
        return Kept({"judgements": [same | {"model": model} | problem for model in settings.models]})
    requests = (judge(view, context.chat, settings, model, item["kind"]) for model in settings.models)
    rows, used = [], Usage()
    for model, (verdict, usage) in zip(settings.models, await asyncio.gather(*requests), strict=True):
        rows.append(same | {"model": model} | _row(verdict, model, settings.tries))
        used += usage
    return Kept({"judgements": rows}, used)


def _row(verdict: Verdict | BadVerdict, model: str, tries: int) -> Row:
    if isinstance(verdict, BadVerdict):
        return _problem("no_verdict", detail=str(verdict), model=model, tries=tries)
    return {
        "localizability": verdict.localizability,
        "score": verdict.score,
        "reason": verdict.reason,
        "sub_scores_json": json.dumps(verdict.sub_scores.model_dump(), sort_keys=True),
        "scenes_json": json.dumps(verdict.scenes.model_dump(), sort_keys=True),
    }


async def judge(
    view: bytes, chat: Chat, settings: JudgeSettings, model: str | None = None, kind: str = "photo"
) -> tuple[Verdict | BadVerdict, Usage]:
    """A judge's verdict on a JPEG and what it used; where no answer is a verdict, the last one's fault."""
    question: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": to_data_uri(view)}},
        text_part(question_about(kind)),
    ]
    messages: list[Message] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    usage, fault = Usage(), BadVerdict("the judge was not asked")
    for attempt in range(settings.tries):
        reply = await chat.complete(
            model or settings.model,
            messages,
            response_format=response_format(),
            temperature=0,
            seed=attempt,  # another seed, or a deterministic model would fail the same way again
            max_tokens=settings.max_tokens,
        )
        usage += reply.usage
        try:
            return parse_verdict(reply.text), usage
        except BadVerdict as error:
            fault = error
    return fault, usage


def _problem(name: str, **evidence: Any) -> Row:
    return {"problem": name, "evidence_json": json.dumps(evidence, sort_keys=True, ensure_ascii=False)}


STAGE = Stage(
    name="curate.judge",
    section="curate.judge",
    reads=("images", "duplicates"),
    writes=("judgements",),
    items=items,
    work=work,
    open=open_context,
    resources=Resources(cpus=1, concurrency=8, chunk=2),
    services=services,
    roles=roles,
    words=lambda settings: [SYSTEM, question_about("photo"), question_about("satellite"), response_format()],
)
