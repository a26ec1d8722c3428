"""The stage that makes trajectories: labelled pictures in, kept and rejected conversations out.

An item is a picture under a recipe. Attempts at it are made one after the other until enough are kept or all are
used; every attempt is a row, whatever its verdict.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import polars as pl

from schemas.messages import Usage
from schemas.settings.synthesize import SynthesizeSettings
from tasks.agent.derived import derived_rows
from tasks.agent.environment import Environment, Trajectory, run_agent
from tasks.agent.picture import Picture, open_picture
from tasks.agent.recipe import Recipe
from tasks.agent.recipes import RECIPES
from tasks.agent.seeds import stable_seed
from tasks.agent.service_tools import open_toolbox
from tasks.agent.toolbox import Toolbox
from tasks.lake.image_store import ImageStore
from tasks.reward.answer import Address
from tasks.runtime.labelled import labelled_pictures
from tasks.runtime.runner import Inputs, Kept, Outcome, Rejected, Resources, Row, Stage, WorkerSetup, digest
from tasks.services import Chat, ServiceError
from tasks.synthesize.attempt import attempt, limits
from tasks.synthesize.notes import read_notes
from tasks.synthesize.rejection import Truth, Verdict, verdict


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
    for recipe in settings.also:
        if recipe != settings.recipe:
            frames.append(_items_of(inputs, settings, recipe, settings.also_images))
    return pl.concat(frames)


def _items_of(inputs: Inputs, settings: SynthesizeSettings, recipe: str, max_images: int | None) -> pl.DataFrame:
    chosen = labelled_pictures(inputs, "train", max_images)
    addresses = inputs.frame("labels").select("image_id", "country", "region", "city")
    chosen = chosen.join(addresses, on="image_id", how="left")
    if recipe == "geoagent" and settings.notes is not None:
        chosen = chosen.join(read_notes(settings.notes), on="image_id", how="inner")
    else:
        chosen = chosen.with_columns(notes=pl.lit(None, pl.String))
    return chosen.select(
        pl.format("{}:{}", pl.lit(recipe), "image_id").alias("id"),
        *("image_id", "sha256", "extension", "lat", "lon", "country", "region", "city", "notes"),
        pl.lit(recipe).alias("recipe"),
        pl.lit(RECIPES[recipe].prompt_hash).alias("prompt_hash"),  # other words make another trajectory
        pl.lit(inputs.snapshot_id).alias("snapshot_id"),
    ).sort("sha256", "image_id")


def scope(settings: SynthesizeSettings) -> tuple[str, ...]:
    """The recipes a run is about; trajectories of others stand."""
    return tuple(f"{recipe}:" for recipe in dict.fromkeys((settings.recipe, *settings.also)))


def identity(settings: SynthesizeSettings) -> Any:
    """The settings that decide a trajectory; which recipes and pictures are tried is in the items."""
    decided = settings.identity()
    return {name: value for name, value in decided.items() if name not in ("recipe", "also", "also_images", "notes")}


def roles(settings: SynthesizeSettings) -> tuple[str, ...]:
    """The models that the chosen recipes ask."""
    found: list[str] = []
    for recipe in (settings.recipe, *settings.also):
        writer = "agent" if settings.single_agent else RECIPES[recipe].writers[0]
        if writer == "pair":
            found += [settings.observer, settings.planner]
        elif writer == "levels" and settings.notes is not None:
            found.append(settings.normalizer)
        elif writer != "truth":
            found.append(settings.agent)
    return tuple(dict.fromkeys(found))


def open_context(settings: SynthesizeSettings, setup: WorkerSetup) -> WorkerContext:
    services = setup.connections
    tools = open_toolbox(services, setup.lake.state, settings.result_chars)
    return WorkerContext(settings, setup.lake.images, Chat(services.chat), tools)


async def work(item: Row, context: WorkerContext) -> Outcome:
    """The attempts at one picture, kept or rejected; all are stored. An outage raises, and is tried again."""
    settings, recipe = context.settings, RECIPES[item["recipe"]]
    original = await asyncio.to_thread(context.images.read, item["sha256"], item["extension"])
    picture = await asyncio.to_thread(open_picture, original, settings.view_max_pixels, settings.view_min_pixels)
    truth = Truth(item["lat"], item["lon"], Address(item["country"], item["region"], item["city"]))
    rows: list[Row] = []
    files: list[Row] = []
    judged: list[Verdict] = []
    usage = Usage()
    for number in range(settings.samples if recipe.writers[0] != "truth" else 1):
        writer, trajectory = await _try(item, recipe, picture, truth, number, context)
        judged.append(verdict(trajectory, recipe, truth, settings))
        rows.append(_row(item, recipe, writer, number, picture, trajectory, judged[-1]))
        files += derived_rows(rows[-1]["trajectory_id"], item["image_id"], trajectory.messages)
        usage += trajectory.usage
        if sum(one.kept for one in judged) >= settings.enough:
            break
    if any(one.kept for one in judged):
        return Kept({"derived": files, "trajectories": rows}, usage)
    last = judged[-1]
    evidence = {
        "attempts": len(judged),
        "reasons": [list(one.reasons) for one in judged],
        "error_km": [one.error_km for one in judged],
        "answer": (last.answer or "")[:300],
        "found": list(last.evidence)[:5],
    }
    return Rejected(judged[0].reasons[0], evidence, {"derived": files, "trajectories": rows}, usage)


async def _try(
    item: Row, recipe: Recipe, picture: Picture, truth: Truth, number: int, context: WorkerContext
) -> tuple[str, Trajectory]:
    """One attempt. The environment is not given the item: it can leak neither the truth nor a name into a prompt."""
    seed = stable_seed(recipe.name, item["sha256"], number)
    made = attempt(recipe, context.settings, context.chat, picture, truth, item["notes"], seed)
    environment = Environment(
        picture,
        context.tools,
        recipe,
        limits(recipe, context.settings),
        lambda jpeg: context.images.put(jpeg, "jpg"),
        stop_at_outage=True,
    )
    trajectory = await run_agent(environment, made.ask)
    if trajectory.outage:
        failed = next(call for call in trajectory.calls if call.outage)
        raise ServiceError(failed.name, "outage", f"{failed.name}: {failed.error}", retryable=True)
    return made.writer, trajectory


def _row(
    item: Row, recipe: Recipe, writer: str, number: int, picture: Picture, trajectory: Trajectory, judged: Verdict
) -> Row:
    return {
        "trajectory_id": digest(item["image_id"], recipe.name, number),
        "image_id": item["image_id"],
        "snapshot_id": item["snapshot_id"],
        "recipe": recipe.name,
        "prompt_version": recipe.version,
        "prompt_hash": recipe.prompt_hash,
        "writer": writer,
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
    reads=("labels", "images"),
    writes=("derived", "trajectories"),
    items=items,
    work=work,
    open=open_context,
    resources=Resources(cpus=1, concurrency=8, chunk=2),
    services=("chat", "search", "geocoder"),
    roles=roles,
    version=2,
    identity=identity,
    scope=scope,
    snapshot=True,
    unhashed=("snapshot_id",),
)
