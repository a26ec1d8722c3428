"""How long a run would take: as long as the last one did for each picture, or by whatever holds it up the most."""

import io
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import polars as pl
from PIL import Image

from schemas.settings.collect import CollectSettings
from schemas.settings.services import is_loopback
from tasks.collect.budgets import limits
from tasks.collect.download import prepare
from tasks.frame import Context, Stage
from tasks.lake import Lake
from tasks.services import Connection

ENOUGH = 20  # pictures fetched in one go, from which their pace is known
BREAK = timedelta(minutes=1)  # without a picture, and a run is over


@dataclass(frozen=True)
class Load:
    """What the time of a stage follows from."""

    busy_s: float  # seconds that all items take, each by itself
    at_once: int  # items under way when that was measured
    pictures: float  # to be made
    size: float  # of their files, in bytes
    prepare_s: float = 0.0  # of computing, for a picture
    pace: float | None = None  # pictures a second, of the last run


def duration(
    stage: Stage,
    load: Load,
    kinds: Mapping[str, tuple[float, float]],
    connection: Connection,
    context: Context,
    megabytes_per_second: float,
) -> tuple[float, str]:
    """Seconds, and what they are spent on."""
    bounds = {"requests a minute": max((limit.minutes * 60 for limit in limits(kinds, context)), default=0.0)}
    if load.pace:
        bounds["the pace of the last run"] = load.pictures / load.pace
    else:
        preparing_s = load.pictures * load.prepare_s / workers(stage, context)
        bounds["preparing pictures"] = preparing_s
        bounds["the line"] = load.size / (megabytes_per_second * 1e6)
        if is_loopback(connection.endpoint.base_url):
            # The service shares our cores: more at once makes no more of it, and its work adds to ours.
            bounds["the service's answers"] = load.busy_s / load.at_once + preparing_s
        else:
            bounds["the service's answers"] = load.busy_s / parallel(stage, context)
    longest = max(bounds, key=lambda name: bounds[name])
    return bounds[longest], longest


def pace_of(lake: Lake, kinds: tuple[str, ...]) -> float | None:
    """Pictures a second, when they were last fetched in larger number; none while they never were."""
    moments = lake.read("images", columns=["kind", "fetched_at"]).filter(pl.col("kind").is_in(kinds))["fetched_at"]
    # By the time they came, not by the run that wrote them last: a redone place writes what it had once more.
    goes = (
        pl.DataFrame({"at": moments.drop_nulls().sort()})
        .with_columns(go=(pl.col("at").diff() > BREAK).fill_null(False).cum_sum())
        .group_by("go", maintain_order=True)
        .agg(first=pl.col("at").min(), last=pl.col("at").max(), count=pl.len())
        .filter(pl.col("count") >= ENOUGH, pl.col("last") > pl.col("first"))
    )
    if goes.is_empty():
        return None
    last = goes.row(-1, named=True)
    return float((last["count"] - 1) / (last["last"] - last["first"]).total_seconds())


def preparing_s(settings: CollectSettings) -> float:
    """Seconds that one panorama takes to be decoded, assembled and encoded here, by doing it."""
    width = settings.panorama_width
    coarse = np.random.default_rng(0).integers(0, 255, (32, 64, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((width, width // 2)).save(file, "JPEG", quality=88)
    wanted = settings.model_copy(update={"panorama_min_pixels": 1})
    start_s = time.monotonic()
    prepare(file.getvalue(), "panorama", wanted)
    return time.monotonic() - start_s


def workers(stage: Stage, context: Context) -> int:
    return stage.resources.workers or context.spread.workers or os.cpu_count() or 1


def parallel(stage: Stage, context: Context) -> int:
    """Items under way in a run."""
    return workers(stage, context) * stage.resources.concurrency
