"""What a run of collect would cost: a few places are searched for real, up to where pictures would be fetched.

Of pictures only the size is asked for, of scenes only the index and the cloud map. Nothing is written.
"""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import polars as pl

from schemas.settings.collect import CollectSettings
from tasks.collect import recheck, satellite, street_view
from tasks.collect.candidates import Candidate
from tasks.collect.previous import ended_upstream
from tasks.collect.satellite.choice import choose, owners
from tasks.collect.satellite.cog import ranges
from tasks.collect.satellite.grid import grid_around
from tasks.collect.satellite.raster import blocks_of, on_grid
from tasks.collect.satellite.scenes import BANDS, VISUAL, UnusableScene
from tasks.collect.satellite.search import find_scenes, newest_processing
from tasks.collect.worker import WorkerContext
from tasks.runtime.estimate import StageEstimate, affordable, draw, sample, set_time
from tasks.runtime.outcome import Row
from tasks.runtime.runner import Context, Inputs, Stage, pending
from tasks.services import Mapillary, ServiceError, Stac
from tasks.services.errors import gather_all
from tasks.services.meter import Tally, count, counted_in

BYTES_PER_PIXEL, PIXELS = 0.25, 8_000_000  # of a picture that says neither its bytes nor its size
REDONE = 12  # places of pictures that are gone or changed, sampled at most
# What the kinds of requests are, for people.
KINDS = {
    "mapillary search": "searches by box",
    "mapillary": "details and lists of pictures",
    "mapillary tiles": "vector tiles",
    "mapillary picture": "pictures from their host",
    "stac search": "searches for scenes",
    "stac token": "signatures",
    "stac file": "parts of scenes",
}


async def estimate(settings: CollectSettings, context: Context) -> tuple[list[StageEstimate], Tally]:
    """What each stage would cost, and what was asked to find out."""
    stac = Stac(context.connections.stac)
    with counted_in(Tally()) as asked:
        streets = _Streets(context, settings, asked)
        try:
            stages = [await streets.recheck(), await streets.places(), await _scenes(settings, context, stac)]
        finally:
            await streets.mapillary.close()
            await stac.close()
    return stages, asked


def _no_name(*parts: str) -> str:
    return ""  # a name would write the lake's key


@dataclass(frozen=True)
class _ReadOnlyLake:
    images: Any
    name: Any = _no_name


@dataclass
class _Streets:
    """Street-view places and re-checks."""

    context: Context
    settings: CollectSettings
    asked: Tally  # for requests that a run would not send
    mapillary: Mapillary = field(init=False)
    due: pl.DataFrame = field(init=False)
    news: list[Row] = field(default_factory=list)  # sampled pictures that are gone, lost or changed
    fetched: set[str] = field(default_factory=set)  # of them, those whose bytes a check will have fetched
    scale: float = 1.0  # pictures due for each one sampled

    def __post_init__(self) -> None:
        self.mapillary = Mapillary(self.context.connections.mapillary)

    async def recheck(self) -> StageEstimate:
        stage = recheck.STAGE
        self.due = await asyncio.to_thread(pending, stage, self.settings, self.context)
        images = self.due.filter(pl.col("subject") == "image")
        found = StageEstimate(stage.name, self.due.height)
        if images.is_empty():
            return found
        await asyncio.to_thread(self.context.ready)
        seed, size = self.settings.estimate.seed, min(recheck.AT_ONCE, images.height)
        drawn = draw(images, seed, by="source_id").head(size)
        self.scale = images.height / size
        before = self.asked.bytes["mapillary"]
        known = await self.mapillary.images_by_id(drawn["source_id"].to_list(), recheck.FIELDS)
        lists = -(-images.height // recheck.AT_ONCE)
        found.add("mapillary", lists, (self.asked.bytes["mapillary"] - before) * self.scale)
        gone: list[Row] = []

        async def check(item: Row) -> None:
            row = known.get(item["source_id"])
            if row is None:
                # A list that names an unknown picture is asked for again without it, then that picture alone.
                count("mapillary", "", 2, 0, sent=False)
                gone.append(item)
            elif item["lost"]:
                self.news.append(item)
            elif self.settings.refresh.bytes == "always":
                size, etag = await self._outline(row.get("thumb_original_url"))
                changed = item["etag"] is None or etag != item["etag"]
                count("mapillary", "picture", 1, size if changed else 0, sent=False)
                if changed:
                    self.news.append(item)
                    self.fetched.add(item["source_id"])

        found.add_sample(await sample(drawn, check, size, seed), images.height)
        for note, number in (
            ("are gone upstream", len(gone)),
            ("have lost their files", len(self.news) - len(self.fetched)),
            ("have changed upstream, or cannot tell and come again", len(self.fetched)),
        ):
            if number:
                found.notes.append(f"about {number * self.scale:,.0f} pictures {note}; their places are done again")
        self.news += gone
        set_time(found, stage, self.context, self.settings.estimate.megabytes_per_second)
        return found

    async def places(self) -> StageEstimate:
        stage, wanted = street_view.STAGE, self.settings.estimate
        todo, others = await asyncio.to_thread(self._unfinished, stage)
        news = self._with_news(others)
        redone = news.height * self.scale
        found = StageEstimate(stage.name, todo.height + round(redone))
        if not found.items:
            return found
        await asyncio.to_thread(self.context.ready)
        lake: Any = _ReadOnlyLake(self.context.lake.images)
        ended = ended_upstream(self.context.lake, street_view.NAME)
        worker = WorkerContext(self.mapillary, lake, self.settings, take=self._size_only, ended=ended)
        work = partial(street_view.work, context=worker)
        afford = affordable(self.context.connections.mapillary, ("", "search", "tiles"))
        found.add_sample(await sample(todo, work, wanted.places, wanted.seed, afford), todo.height)
        found.add_sample(await sample(news, work, REDONE, wanted.seed, afford), redone)
        set_time(found, stage, self.context, wanted.megabytes_per_second)
        return found

    def _unfinished(self, stage: Stage) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The places a run would work on, those due to be looked at again included; and all others."""
        todo = pending(stage, self.settings, self.context).drop("made_from")
        versions = {table: self.context.lake.version(table) for table in stage.reads}
        every = street_view.items(Inputs(self.context.lake, versions), self.settings).select(todo.columns)
        again = self.due.filter(pl.col("subject") == "place").select("id")
        both = pl.concat([todo, every.join(again, on="id", how="semi").join(todo, on="id", how="anti")])
        return both, every.join(both, on="id", how="anti")

    def _with_news(self, places: pl.DataFrame) -> pl.DataFrame:
        """The places of pictures that are gone or changed, without those pictures."""
        touched = places.filter(pl.col("id").is_in([item["place_id"] for item in self.news]))
        lost = pl.element().struct.field("source_id").is_in([item["source_id"] for item in self.news])
        return touched.with_columns(had=pl.col("had").list.eval(pl.element().filter(~lost)))

    async def _size_only(self, candidate: Candidate, context: WorkerContext) -> dict[str, Any]:
        if candidate.source_id not in self.fetched:
            guess = round(BYTES_PER_PIXEL * (candidate.pixels or PIXELS))
            size, _ = await self._outline(candidate.url, guess)
            count("mapillary", "picture", 1, size, sent=False)
        return {}

    async def _outline(self, url: object, guess: int = round(BYTES_PER_PIXEL * PIXELS)) -> tuple[int, str]:
        """(bytes, etag) of a picture; the request is counted as ours, since a run would not send it."""
        if not isinstance(url, str):
            return 0, ""
        try:
            with counted_in(self.asked):
                outline = await self.mapillary.outline(url)
        except ServiceError as error:
            if error.retryable or error.kind == "auth":
                raise
            return guess, ""
        return outline.size or guess, outline.etag


async def _scenes(settings: CollectSettings, context: Context, stac: Stac) -> StageEstimate:
    stage, wanted = satellite.STAGE, settings.estimate
    todo = await asyncio.to_thread(pending, stage, settings, context)
    found = StageEstimate(stage.name, todo.height)
    if todo.is_empty():
        return found
    await asyncio.to_thread(context.ready)
    afford = affordable(context.connections.stac, ("search", "file"))
    drawn = await sample(todo, partial(_scene_costs, stac, settings), wanted.scenes, wanted.seed, afford)
    for cost in drawn.costs:
        del cost.requests["stac token"], cost.bytes["stac token"]  # one for each worker, not for each picture
    found.add_sample(drawn, todo.height)
    found.add("stac token", min(todo.height, stage.resources.workers or context.spread.workers or 1))
    set_time(found, stage, context, wanted.megabytes_per_second)
    return found


async def _scene_costs(stac: Stac, settings: CollectSettings, item: Row) -> None:
    """Search and choose scenes as ever; of their bands only the index is read and the ranges are counted."""
    wanted = settings.satellite
    grid = grid_around(item["lat"], item["lon"], item["metres_per_pixel"], item["size_px"], item["east"], item["north"])
    scenes, _, _ = await find_scenes(stac, grid, wanted)
    choice = await choose(stac, newest_processing(scenes), grid, wanted) if scenes else None
    if choice is None or not choice.layers:
        return
    owner, _ = owners(choice.layers)

    async def band(href: str, epsg: int | None, need: Any) -> None:
        try:
            file = await on_grid(partial(stac.read, href), grid, epsg)
        except UnusableScene:
            return
        for start, end, _ in ranges(file.level, file.tiles(need)):
            count("stac", "file", 1, end - start, sent=False)

    await gather_all(
        band(layer.scene.hrefs[name], layer.scene.epsg, need)
        for number, layer in enumerate(choice.layers)
        if (need := blocks_of(owner == number)).any()
        for name in ((VISUAL,) if wanted.assets == "visual" else BANDS)
    )
