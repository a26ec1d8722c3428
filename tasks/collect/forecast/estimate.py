"""What a run of collect would send and receive, before it does: counted where it is known, sampled where it is not.

The items are those the frame would work on. A seeded sample of them is searched for real, up to the point where
pictures would be fetched; there only their sizes are asked for. Totals follow with an interval. Nothing is written.
"""

import asyncio
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from schemas.settings.collect import CollectSettings
from schemas.settings.services import is_loopback
from tasks.collect import STAGES, recheck, satellite, street_view
from tasks.collect.forecast.budgets import left_today
from tasks.collect.forecast.dry import DryScenes, DryStreets
from tasks.collect.forecast.dry_recheck import Ahead, look_ahead
from tasks.collect.forecast.meter import Tally
from tasks.collect.forecast.sampling import Figure, Sample, sample
from tasks.collect.forecast.tempo import Stretch, tempo_of
from tasks.collect.forecast.timing import Load, duration, pace_of, parallel, workers
from tasks.runtime.runner import Context, Inputs, Stage, pending
from tasks.services import Connection

AT_ONCE, LATER_AT_ONCE = 16, 64  # sampled items under way, at most: of the first ones, and of further ones
SIGNATURE_S = 2400.0  # a signature is renewed after about 40 minutes
SHARE_OF_DAY = 0.1  # of the requests left today, at most so many for finding out
REDONE = 12  # places of pictures that are gone or changed, at most so many of them sampled


@dataclass
class StageEstimate:
    """What one stage would cost."""

    stage: str
    items: int
    sampled: int = 0
    requests: Figure = field(default_factory=Figure)
    bytes: Figure = field(default_factory=Figure)
    kinds: dict[str, tuple[float, float]] = field(default_factory=dict)  # kind -> requests, bytes
    seconds: float = 0.0
    bound_by: str = ""  # what the time is made of
    notes: list[str] = field(default_factory=list)

    def add(self, kind: str, requests: float, size: float = 0.0) -> None:
        """Count what is known exactly."""
        before = self.kinds.get(kind, (0.0, 0.0))
        self.kinds[kind] = (before[0] + requests, before[1] + size)
        self.requests += Figure(requests, requests, requests)
        self.bytes += Figure(size, size, size)

    def add_sample(self, found: Sample) -> None:
        self.sampled += len(found.tallies)
        if found.failed:
            self.notes.append(f"{len(found.failed)} of {len(found.tallies)} sampled failed: {found.failed[0]}")
        self.requests += found.requests()
        self.bytes += found.bytes()
        for kind, (requests, size) in found.by_kind().items():
            before = self.kinds.get(kind, (0.0, 0.0))
            self.kinds[kind] = (before[0] + requests, before[1] + size)


@dataclass
class Estimate:
    """What a run would cost, stage by stage, and what it cost to find out."""

    stages: list[StageEstimate]
    asked: Tally

    def requests(self) -> Counter[str]:
        """By kind, over all stages."""
        found: Counter[str] = Counter()
        for stage in self.stages:
            found.update({kind: round(requests) for kind, (requests, _) in stage.kinds.items()})
        return found


async def estimate(settings: CollectSettings, context: Context) -> Estimate:
    """Ask a few questions and say what a run would cost."""
    threads = min(workers(street_view.STAGE, context), os.cpu_count() or 1)
    streets = DryStreets(context.connections.mapillary, context.lake, settings, threads)
    scenes = DryScenes(context.connections.stac, settings)
    try:
        checked, ahead = await _recheck(settings, context, streets)
        stages = [checked, await _streets(settings, context, streets, ahead)]
        if satellite.STAGE in STAGES:
            stages.append(await _scenes(settings, context, scenes))
    finally:
        await streets.close()
        await scenes.close()
    asked = Tally()
    asked += streets.meter.asked
    asked += scenes.meter.asked
    return Estimate(stages, asked)


async def _recheck(settings: CollectSettings, context: Context, streets: DryStreets) -> tuple[StageEstimate, Ahead]:
    stage = recheck.STAGE
    due = await asyncio.to_thread(pending, stage, settings, context)
    images = due.filter(pl.col("subject") == "image")
    found = StageEstimate(stage.name, due.height)
    if images.is_empty():
        return found, Ahead(0)
    await asyncio.to_thread(context.ready)
    ahead = await look_ahead(images, streets, settings, AT_ONCE)
    for kind, (requests, size) in ahead.kinds().items():
        found.kinds[kind] = (requests.value, size.value)
        found.requests += requests
        found.bytes += size
    found.sampled, found.notes = len(ahead.seen), ahead.notes()
    load = Load(images.height, tempo_of(ahead.stretches), 0, found.bytes.value)
    _time(found, stage, load, context.connections.mapillary, settings, context)
    return found, ahead


async def _streets(settings: CollectSettings, context: Context, streets: DryStreets, ahead: Ahead) -> StageEstimate:
    stage, wanted = street_view.STAGE, settings.estimate
    unfinished, again = await asyncio.to_thread(_places, settings, context)
    redone = _without_news(again, ahead)
    streets.came = frozenset(one.source_id for one in ahead.seen if one.whole_bytes)
    extra = redone.height * ahead.scale
    found = StageEstimate(stage.name, unfinished.height + round(extra))
    if found.items:
        await asyncio.to_thread(context.ready)
    at_once = min(AT_ONCE, parallel(stage, context))
    options: dict[str, Any] = {"precision": wanted.precision, "seed": wanted.seed, "at_once": at_once}
    later = min(LATER_AT_ONCE, parallel(stage, context))
    afford = SHARE_OF_DAY * left_today(context.connections.mapillary)
    main = await sample(
        unfinished, streets.place, first=wanted.places, most=wanted.most_places, afford=afford, later=later, **options
    )
    found.add_sample(main)
    if main.cut_short:
        found.notes.append(f"{found.sampled} sampled, not more: that would take over a tenth of what is left of today")
    beside = await sample(redone, streets.place, first=REDONE, most=REDONE, population=extra, **options)
    found.add_sample(beside)
    pictures, size = found.kinds.get("picture", (0.0, 0.0))
    load = Load(
        found.items,
        tempo_of([*main.stretches, *beside.stretches]),
        pictures,
        size,
        pace=pace_of(context.lake, ("panorama", "photo")),
    )
    _time(found, stage, load, context.connections.mapillary, settings, context)
    return found


def _places(settings: CollectSettings, context: Context) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The places a run would work on, the ones to be looked at again included; and all others."""
    todo = pending(street_view.STAGE, settings, context).drop("made_from")
    due = pending(recheck.STAGE, settings, context).filter(pl.col("subject") == "place")
    versions = {table: context.lake.version(table) for table in street_view.STAGE.reads}
    every = street_view.items(Inputs(context.lake, versions), settings)
    again = every.join(due.select("id"), on="id", how="semi").join(todo, on="id", how="anti")
    both = pl.concat([todo, again.select(todo.columns)])
    return both, every.join(both, on="id", how="anti").select(todo.columns)


def _without_news(places: pl.DataFrame, ahead: Ahead) -> pl.DataFrame:
    """The places of pictures that are gone or changed, which no longer have those."""
    news = [one for one in ahead.seen if one.is_news]
    touched = places.filter(pl.col("id").is_in([one.place_id for one in news]))
    lost = pl.element().struct.field("source_id").is_in([one.source_id for one in news])
    return touched.with_columns(had=pl.col("had").list.eval(pl.element().filter(~lost)))


async def _scenes(settings: CollectSettings, context: Context, scenes: DryScenes) -> StageEstimate:
    stage, wanted = satellite.STAGE, settings.estimate
    todo = await asyncio.to_thread(pending, stage, settings, context)
    found = StageEstimate(stage.name, todo.height)
    if todo.is_empty():
        return found
    await asyncio.to_thread(context.ready)
    at_once = min(AT_ONCE, parallel(stage, context))
    drawn = await sample(
        todo,
        scenes.picture,
        first=wanted.scenes,
        most=wanted.most_scenes,
        precision=wanted.precision,
        seed=wanted.seed,
        at_once=at_once,
    )
    for cost in drawn.tallies:
        del cost.requests["signing"], cost.bytes["signing"]  # not for each picture, but for each worker and while
    found.add_sample(drawn)
    stretches = drawn.stretches
    if is_loopback(context.connections.stac.endpoint.base_url):
        stretches = _with_bands(stretches, scenes, drawn)
    load = Load(
        todo.height,
        tempo_of(stretches),
        todo.height,
        found.bytes.value,
        pace=pace_of(context.lake, ("satellite",)),
    )
    _time(found, stage, load, context.connections.stac, settings, context)
    found.add("signing", min(workers(stage, context), todo.height) * (1 + found.seconds // SIGNATURE_S))
    return found


def _with_bands(stretches: list[Stretch], scenes: DryScenes, drawn: Sample) -> list[Stretch]:
    """The stretches as long as they would have been, had the bands been read.

    A host on this machine makes each tile as we ask for it, so time goes with bytes. Of one elsewhere all are asked for
    at once; there the line is what takes time.
    """
    if not scenes.tasted_bytes or not stretches:
        return stretches
    unread = scenes.band_bytes / len(drawn.tallies) * sum(one.items for one in stretches) - scenes.tasted_bytes
    busy_s = sum(one.busy_s for one in stretches)
    longer = 1 + max(0.0, unread) * scenes.tasted_s / scenes.tasted_bytes / busy_s
    return [Stretch(one.items, one.wall_s * longer, one.busy_s * longer) for one in stretches]


def _time(
    found: StageEstimate, stage: Stage, load: Load, connection: Connection, settings: CollectSettings, context: Context
) -> None:
    speed = settings.estimate.megabytes_per_second
    found.seconds, found.bound_by = duration(stage, load, found.kinds, connection, context, speed)
