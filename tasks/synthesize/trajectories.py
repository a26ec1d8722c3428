"""The stage that makes trajectories: labelled pictures in, kept and rejected conversations out."""

import asyncio
import json
from dataclasses import dataclass

import polars as pl

from schemas.settings.synthesize import SynthesizeSettings
from tasks.agent.react import AgentOptions, Trajectory, locate, stable_seed
from tasks.agent.tools import open_picture
from tasks.lake.image_store import ImageStore
from tasks.runtime.labelled import labelled_pictures
from tasks.runtime.runner import Inputs, Kept, Outcome, Rejected, Resources, Row, Stage, WorkerSetup, digest
from tasks.services import Chat, Geocoder, Search
from tasks.synthesize.rejection import Point, Verdict, verdict


@dataclass(frozen=True)
class WorkerContext:
    """What a worker keeps open."""

    settings: SynthesizeSettings
    images: ImageStore
    chat: Chat
    search: Search
    geocoder: Geocoder


def items(inputs: Inputs, settings: SynthesizeSettings) -> pl.DataFrame:
    """One row for each sample of each picture meant for training, with the truth it is judged by."""
    chosen = labelled_pictures(inputs, "train", settings.max_images)
    samples = pl.DataFrame({"sample": range(settings.samples)}, schema={"sample": pl.Int64})
    return chosen.join(samples, how="cross").select(
        pl.format("{}:{}", "image_id", "sample").alias("id"),
        *("image_id", "sample", "sha256", "extension", "lat", "lon"),
        pl.lit(inputs.snapshot_id).alias("snapshot_id"),
    )


def open_context(settings: SynthesizeSettings, setup: WorkerSetup) -> WorkerContext:
    services = setup.connections
    return WorkerContext(
        settings, setup.lake.images, Chat(services.chat), Search(services.search), Geocoder(services.geocoder)
    )


async def work(item: Row, context: WorkerContext) -> Outcome:
    """A trajectory for one picture, kept or rejected; it is stored either way. An outage raises, and is tried again."""
    settings = context.settings
    original = await asyncio.to_thread(context.images.read, item["sha256"], item["extension"])
    picture = await asyncio.to_thread(open_picture, original, settings.view_max_pixels, settings.view_min_pixels)
    options = AgentOptions(
        observer=settings.observer,
        planner=settings.planner,
        temperature=settings.temperature,
        seed=stable_seed(settings.recipe, item["sha256"], item["sample"]),
        max_tool_calls=settings.max_tool_calls,
        max_tokens=settings.max_tokens,
        result_chars=settings.result_chars,
        max_pixels=settings.view_max_pixels,
        min_pixels=settings.view_min_pixels,
    )
    # The agent is not given the item: it can leak neither the truth nor a name into a prompt.
    trajectory = await locate(
        picture, context.chat, context.search, context.geocoder, options, lambda jpeg: context.images.put(jpeg, "jpg")
    )
    judged = verdict(trajectory, Point(item["lat"], item["lon"]), settings)
    rows = {"trajectories": [_row(item, settings, trajectory, judged)]}
    if judged.kept:
        return Kept(rows, trajectory.usage)
    evidence = {
        "reasons": list(judged.reasons),
        "error_km": judged.error_km,
        "answer": (judged.answer or trajectory.final_text)[:300],
        "call_errors": [call.error[:200] for call in trajectory.calls if call.error],
    }
    return Rejected(judged.reasons[0], evidence, rows, trajectory.usage)


def _row(item: Row, settings: SynthesizeSettings, trajectory: Trajectory, judged: Verdict) -> Row:
    return {
        "trajectory_id": digest(item["image_id"], settings.recipe, item["sample"]),
        "image_id": item["image_id"],
        "snapshot_id": item["snapshot_id"],
        "recipe": settings.recipe,
        "sample": item["sample"],
        "messages_json": json.dumps(trajectory.messages, ensure_ascii=False),
        "tool_calls": len(trajectory.calls),
        "tool_failures": sum(not call.succeeded for call in trajectory.calls),
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
    reads=("labels", "images"),
    writes=("trajectories",),
    items=items,
    work=work,
    open=open_context,
    resources=Resources(cpus=1, concurrency=8, chunk=2),
    services=("chat", "search", "geocoder"),
    snapshot=True,
    unhashed=("snapshot_id",),
)
