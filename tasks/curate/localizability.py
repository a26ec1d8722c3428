"""Labels for the pictures that can be localized: judged by a chat model, addressed by reverse geocoding.

Duplicates and leaks between splits are found over the whole table before any picture is judged, so no request is
spent on them. The judge sees the picture and the question: neither coordinates, nor address, nor file name.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import polars as pl

from schemas.messages import Message, Usage, text_part
from schemas.settings.curate import CurateSettings
from tasks.curate.overlaps import with_overlaps
from tasks.curate.verdict import QUESTION, SYSTEM, BadVerdict, Verdict, parse_verdict, response_format
from tasks.imaging.images import BadImage, model_view, to_data_uri
from tasks.lake import Lake
from tasks.runtime.runner import Inputs, Kept, Outcome, Rejected, Resources, Stage, WorkerSetup
from tasks.services import Chat, Geocoder

KEPT_CLASS = "localizable"


@dataclass(frozen=True)
class WorkerContext:
    """What a worker keeps open."""

    chat: Chat
    geocoder: Geocoder
    lake: Lake
    settings: CurateSettings


def items(inputs: Inputs, settings: CurateSettings) -> pl.DataFrame:
    """One item a picture of the kinds that are judged, with its split and what it overlaps with."""
    places = inputs.frame("places").select("place_id", place_split="split")
    images = inputs.frame("images").filter(pl.col("kind").is_in(settings.kinds))
    # A picture that was brought in answers no place and has a split of its own. One whose place is gone has none, and
    # may be in nobody's training or evaluation.
    of_place = pl.when(pl.col("place_id").is_null()).then("split").otherwise("place_split")
    images = images.join(places, on="place_id", how="left").with_columns(split=of_place)
    return with_overlaps(images.filter(pl.col("split").is_not_null())).select(
        pl.col("image_id").alias("id"),
        "place_id",
        "sha256",
        "extension",
        "lat",
        "lon",
        "split",
        "duplicate_of",
        "leaks_into",
    )


def open_context(settings: CurateSettings, setup: WorkerSetup) -> WorkerContext:
    connections = setup.connections
    return WorkerContext(Chat(connections.chat), Geocoder(connections.geocoder), setup.lake, settings)


async def work(item: dict[str, Any], context: WorkerContext) -> Outcome:
    """The picture's label, or why it has none."""
    if item["duplicate_of"] is not None:
        return Rejected("exact_duplicate", {"of": item["duplicate_of"]})
    if item["leaks_into"] is not None:
        return Rejected("sequence_leak", {"split": item["split"], "sequence_also_in": item["leaks_into"]})
    try:
        data = await asyncio.to_thread(context.lake.images.read, item["sha256"], item["extension"])
        view, _ = await asyncio.to_thread(model_view, data, context.settings.view_max_pixels)
    except BadImage as error:
        return Rejected("corrupt_image", {"kind": error.kind, "detail": error.detail})
    verdict, usage = await judge(view, context.chat, context.settings)
    evidence = {"reason": verdict.reason, "score": verdict.score, "model": context.settings.judge_model}
    if verdict.localizability != KEPT_CLASS:
        return Rejected(verdict.localizability, evidence, usage=usage)
    if verdict.score < context.settings.min_score:
        return Rejected("low_score", {**evidence, "min_score": context.settings.min_score}, usage=usage)
    address = await context.geocoder.reverse(item["lat"], item["lon"])
    if address is None or not address.country:
        return Rejected("no_address", {"lat": item["lat"], "lon": item["lon"]}, usage=usage)
    label = {
        "image_id": item["id"],
        "place_id": item["place_id"],
        "sha256": item["sha256"],
        "lat": item["lat"],
        "lon": item["lon"],
        "country_code": address.country_code or None,
        "country": address.country,
        "region": address.region or None,
        "city": address.city or None,
        "localizability": verdict.localizability,
        "localizability_score": verdict.score,
        "judge_model": context.settings.judge_model,
        "judge_reason": verdict.reason,
        "judge_scores_json": json.dumps(verdict.sub_scores.model_dump(), sort_keys=True),
        "scenes_json": json.dumps(verdict.scenes.model_dump(), sort_keys=True),
        "split": item["split"],
    }
    return Kept({"labels": [label]}, usage)


async def judge(view: bytes, chat: Chat, settings: CurateSettings) -> tuple[Verdict, Usage]:
    """The judge's verdict on a JPEG and what it used; `BadVerdict` when none of its answers was one."""
    question: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": to_data_uri(view)}},
        text_part(QUESTION),
    ]
    messages: list[Message] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    usage = Usage()
    for attempt in range(settings.judge_tries):
        reply = await chat.complete(
            settings.judge_model,
            messages,
            response_format=response_format(),
            temperature=0,
            seed=attempt,  # another seed, or a deterministic model would fail the same way again
            max_tokens=settings.judge_max_tokens,
        )
        usage += reply.usage
        try:
            return parse_verdict(reply.text), usage
        except BadVerdict:
            if attempt == settings.judge_tries - 1:
                raise
    raise AssertionError("settings.judge_tries is at least 1")


STAGE = Stage(
    name="curate.judge",
    reads=("images", "places"),
    writes=("labels",),
    items=items,
    work=work,
    open=open_context,
    resources=Resources(cpus=1, concurrency=8, chunk=2),
    services=("chat", "geocoder"),
)
