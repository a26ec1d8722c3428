"""Where base models place a localizable picture without tools: easy if enough are near (Thinking with Map 4)."""

import asyncio
from dataclasses import dataclass

import polars as pl

from schemas.settings.curate import TiersSettings
from tasks.curate.votes import localizable_pictures
from tasks.geo.distance import distance_km
from tasks.imaging.images import model_view, to_data_uri
from tasks.lake import Lake
from tasks.recipes.recipe import RECIPES
from tasks.reward.answer import ParseFailure, parse_point
from tasks.runtime.runner import Inputs, Kept, Resources, Row, Stage, WorkerSetup
from tasks.services import Chat


@dataclass(frozen=True)
class WorkerContext:
    """What a worker keeps open."""

    chat: Chat
    lake: Lake
    settings: TiersSettings


def roles(settings: TiersSettings) -> tuple[str, ...]:
    return settings.models


def items(inputs: Inputs, settings: TiersSettings) -> pl.DataFrame:
    """One item for each picture that a judge calls localizable or that none has judged, if models are named."""
    judged = localizable_pictures(inputs)
    images = inputs.frame("images", "image_id", "sha256", "extension", "lat", "lon")
    judged_rows = judged.join(images, on="image_id").rename({"image_id": "id"})
    return judged_rows if settings.models else judged_rows.clear()


def open_context(settings: TiersSettings, setup: WorkerSetup) -> WorkerContext:
    return WorkerContext(Chat(setup.connections.chat), setup.lake, settings)


async def work(item: Row, context: WorkerContext) -> Kept:
    """Each model's answer, parsed. An answer without a point is a miss; a service that fails raises."""
    settings = context.settings
    data = await asyncio.to_thread(context.lake.images.read, item["sha256"], item["extension"])
    view, _ = await asyncio.to_thread(model_view, data, settings.view_max_pixels)
    picture = {"type": "image_url", "image_url": {"url": to_data_uri(view)}}
    messages = RECIPES[settings.agent_recipe].direct.opening(picture)
    replies = await asyncio.gather(
        *(
            context.chat.complete(model, messages, temperature=0, seed=0, max_tokens=settings.max_tokens)
            for model in settings.models
        )
    )
    rows, usage = [], None
    for model, reply in zip(settings.models, replies, strict=True):
        usage = reply.usage if usage is None else usage + reply.usage
        row: Row = {"image_id": item["id"], "sha256": item["sha256"], "model": model, "answer": reply.text}
        answer = parse_point(reply.text)
        if isinstance(answer, ParseFailure) or answer.lat is None or answer.lon is None:
            row["parse_error"] = answer.reason if isinstance(answer, ParseFailure) else "no_coordinates"
        else:
            away = distance_km(answer.lat, answer.lon, item["lat"], item["lon"])
            row |= {"lat": answer.lat, "lon": answer.lon, "error_km": away}
        rows.append(row)
    return Kept({"tiers": rows}, usage) if usage else Kept({"tiers": rows})


def tier_of(answers: pl.DataFrame, settings: TiersSettings) -> pl.DataFrame:
    """`image_id`, `sha256` and `tier` of the pictures whose models have all answered."""
    right = (pl.col("error_km") <= settings.easy_km).fill_null(False).sum()
    grouped = answers.filter(pl.col("model").is_in(settings.models)).group_by("image_id", "sha256")
    counted = grouped.agg(right=right, answers=pl.len()).filter(pl.col("answers") == len(settings.models))
    tier = pl.when(pl.col("right") >= settings.least_right).then(pl.lit("easy")).otherwise(pl.lit("hard"))
    return counted.select("image_id", "sha256", tier=tier)


STAGE = Stage(
    name="curate.tiers",
    section="curate.tiers",
    reads=("images", "duplicates", "judgements"),
    writes=("tiers",),
    items=items,
    work=work,
    open=open_context,
    resources=Resources(cpus=1, concurrency=8, chunk=2),
    services=lambda settings: ("chat",) if settings.models else (),
    roles=roles,
    words=lambda settings: RECIPES[settings.agent_recipe].direct.opening_words,
)
