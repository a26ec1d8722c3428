"""How long a run would take: as long as the last one did for each picture, or by whatever holds it up the most."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import polars as pl

from schemas.settings.services import is_loopback
from tasks.collect.forecast.budgets import limits
from tasks.collect.forecast.tempo import Tempo
from tasks.lake import Lake
from tasks.runtime.runner import Context, Stage
from tasks.services import Connection

ENOUGH = 20  # pictures fetched in one go, from which their pace is known
BREAK = timedelta(minutes=1)  # without a picture, and a run is over


@dataclass(frozen=True)
class Load:
    """What the time of a stage follows from."""

    items: float
    tempo: Tempo
    pictures: float  # to be made
    size: float  # of their files, in bytes
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
    # Pictures a second say nothing about items that bring none, such as places without imagery looked at again.
    if load.pace and load.pictures >= load.items / 2:
        bounds["the pace of the last run"] = load.pictures / load.pace
    else:
        bounds["the work on each item"] = load.tempo.seconds(load.items, parallel(stage, context))
        if not is_loopback(connection.endpoint.base_url):
            bounds["the line"] = load.size / (megabytes_per_second * 1e6)
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


def workers(stage: Stage, context: Context) -> int:
    return stage.resources.workers or context.spread.workers or os.cpu_count() or 1


def parallel(stage: Stage, context: Context) -> int:
    """Items under way in a run."""
    return workers(stage, context) * stage.resources.concurrency
