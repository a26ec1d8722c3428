"""The stage that measures difficulty: K trials of a policy at each training picture."""

import asyncio
from dataclasses import dataclass
from typing import Any

import polars as pl

from schemas.errors import StageRefused
from schemas.messages import Usage
from schemas.settings.difficulty import DifficultySettings
from tasks.agent.prompts.spotagent import direct_messages
from tasks.agent.react import stable_seed
from tasks.difficulty.regime import measure
from tasks.geo.distance import distance_km
from tasks.imaging.images import model_view, to_data_uri
from tasks.lake.image_store import ImageStore
from tasks.reward.answer import ParseFailure, parse_point
from tasks.runtime.labelled import labelled_pictures
from tasks.runtime.runner import Inputs, Kept, Outcome, Rejected, Resources, Row, Stage, WorkerSetup, digest
from tasks.services import Chat


@dataclass(frozen=True)
class WorkerContext:
    """What a worker keeps open."""

    settings: DifficultySettings
    images: ImageStore
    chat: Chat


def items(inputs: Inputs, settings: DifficultySettings) -> pl.DataFrame:
    """One row for each picture meant for training, with the truth its trials are measured by."""
    chosen = labelled_pictures(inputs, "train", settings.max_images)
    return chosen.select(
        pl.format("{}|{}", "image_id", pl.lit(settings.policy)).alias("id"),
        "image_id",
        "sha256",
        "extension",
        "lat",
        "lon",
        pl.lit(inputs.snapshot_id).alias("snapshot_id"),
    )


def open_context(settings: DifficultySettings, setup: WorkerSetup) -> WorkerContext:
    services = setup.connections
    connection = services.chat if settings.endpoint == "chat" else services.trained
    if connection is None:
        raise StageRefused("difficulty.endpoint is 'trained', but services.trained names no server")
    return WorkerContext(settings, setup.lake.images, Chat(connection))


async def work(item: Row, context: WorkerContext) -> Outcome:
    """The attempts at one picture and its regimes. An outage in any trial raises, and all K are tried again."""
    settings = context.settings
    original = await asyncio.to_thread(context.images.read, item["sha256"], item["extension"])
    view, _ = await asyncio.to_thread(model_view, original, settings.view_max_pixels, settings.view_min_pixels)
    picture = {"type": "image_url", "image_url": {"url": to_data_uri(view)}}
    attempts: list[Row] = []
    usage = Usage()
    for trial in range(settings.k):
        attempt, used = await _attempt(item, trial, picture, context)
        attempts.append(attempt)
        usage += used
    difficulty = measure([a["error_km"] for a in attempts], settings.thresholds_km, settings.phase_one_km)
    row = {
        "image_id": item["image_id"],
        "snapshot_id": item["snapshot_id"],
        "policy": settings.policy,
        "k": settings.k,
        "threshold_km": list(settings.thresholds_km),
        "passes": list(difficulty.passes),
        "regimes": list(difficulty.regimes),
        "kept": difficulty.kept,
        "phase": difficulty.phase,
    }
    rows = {"attempts": attempts, "regimes": [row]}
    if difficulty.kept:
        return Kept(rows, usage)
    evidence = {"k": settings.k, "threshold_km": row["threshold_km"], "passes": row["passes"]}
    return Rejected(difficulty.reason, evidence, rows, usage)


async def _attempt(item: Row, trial: int, picture: dict[str, Any], context: WorkerContext) -> tuple[Row, Usage]:
    """One trial as a row of `attempts`. A reply that cannot be read is a miss, never a lost row."""
    settings = context.settings
    reply = await context.chat.complete(
        settings.policy,
        direct_messages(picture),
        temperature=settings.temperature,
        seed=stable_seed("difficulty", item["sha256"], settings.policy, trial),
        max_tokens=settings.max_tokens,
    )
    answer = parse_point(reply.text)
    row: Row = {
        "attempt_id": digest(item["image_id"], settings.policy, trial),
        "image_id": item["image_id"],
        "snapshot_id": item["snapshot_id"],
        "policy": settings.policy,
        "trial": trial,
        "answer": reply.text,
        "tool_calls": len(reply.tool_calls),
        "prompt_tokens": reply.usage.prompt_tokens,
        "completion_tokens": reply.usage.completion_tokens,
        "cost_usd": reply.usage.cost_usd,
        "lat": None,
        "lon": None,
        "error_km": None,
        "parse_error": None,
    }
    if isinstance(answer, ParseFailure) or answer.lat is None or answer.lon is None:
        row["parse_error"] = answer.reason if isinstance(answer, ParseFailure) else "no_coordinates"
    else:
        row |= {"lat": answer.lat, "lon": answer.lon}
        row["error_km"] = distance_km(answer.lat, answer.lon, item["lat"], item["lon"])
    return row, reply.usage


STAGE = Stage(
    name="difficulty",
    reads=("labels", "images"),
    writes=("attempts", "regimes"),
    items=items,
    work=work,
    open=open_context,
    resources=Resources(cpus=1, concurrency=8, chunk=2),
    services=("chat",),
    snapshot=True,
    unhashed=("snapshot_id",),
)
