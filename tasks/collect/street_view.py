"""Street-view pictures for every planned place, with licence, creator and sha256.

What one place gets depends only on the place, the settings and what the service holds, so a run that was killed
ends with the same rows when it is started again.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

import polars as pl

from schemas.settings.collect import CollectSettings
from tasks.collect.candidates import Candidate
from tasks.collect.download import ADDRESS, Downloads, Unusable
from tasks.collect.keeping import (
    BESIDE,
    ended_upstream,
    facts_before,
    facts_had,
    prepared_with,
    seen_changed,
    with_what_it_has,
)
from tasks.collect.notes import Notes, RecallingMapillary
from tasks.collect.search import Asked, Search
from tasks.collect.spool import Spool
from tasks.collect.tile_cache import TileCache
from tasks.collect.tiles import in_tile_order
from tasks.collect.wishes import Wish, fulfil, wishes_of
from tasks.frame import Inputs, Kept, Outcome, Rejected, Resources, Stage, Workshop
from tasks.lake import Lake
from tasks.pace import Pace, computing
from tasks.services import Mapillary, ServiceError

SOURCE = "mapillary"
LICENCE = "CC BY-SA 4.0"
NAME = "collect"
FEWEST, MOST = 8, 64  # places under way in a worker: a service that takes a second for an answer needs dozens
VERSION = 1  # raise it when other bytes are stored for the same picture and settings


async def fetch_and_store(
    candidate: Candidate, bench: "Bench", since_s: float = 0.0, seen_sha256: str | None = None
) -> dict[str, Any]:
    """The picture's bytes, stored; what there is to say about them. `Unusable` when they are no picture.

    Whatever had come before, no earlier than `since_s` or as a check has seen it, does not come again.
    """
    key = candidate.source_id, str(candidate.kind), prepared_with(bench.settings, VERSION)
    told = _told_before(key, bench, since_s, seen_sha256)
    if told is not None:
        return told
    try:
        came = bench.spool.find(candidate.source_id, since_s, seen_sha256)
        picture = await bench.downloads.get(candidate, came)
    except Unusable as why:
        bench.notes.add({"kind": why.kind, "detail": why.detail}, "unusable", *key)
        bench.spool.drop(candidate.source_id)
        raise
    came = picture.came
    facts: dict[str, Any] = {
        "fetched_at": came.at,
        "request_url": came.request_url,
        "http_status": 200,  # anything else is no picture
        "sha256": picture.sha256,
        "extension": picture.extension,
        "bytes": picture.size,
        "width": picture.width,
        "height": picture.height,
        "etag": came.etag,
        "source_sha256": came.sha256,
        "source_bytes": len(came.data),
        "prepared": key[-1],
    }
    bench.notes.add(facts | {"fetched_at": came.at.isoformat()}, "picture", *key)
    bench.spool.drop(candidate.source_id)  # from here on the notes say it
    return facts


def _told_before(
    key: tuple[str, ...], bench: "Bench", since_s: float, seen_sha256: str | None
) -> dict[str, Any] | None:
    """The facts of a picture that a killed run has stored for a place it did not finish, or why it is unusable."""
    why = bench.notes.find("unusable", *key, since_s=since_s)
    if why is not None:
        raise Unusable(why["kind"], why["detail"])
    facts = bench.notes.find("picture", *key)
    if facts is None or not bench.lake.images.path(facts["sha256"], facts["extension"]).exists():
        return None
    is_current = bench.notes.find("picture", *key, since_s=since_s) is not None
    if not is_current and facts["source_sha256"] != seen_sha256:
        return None
    return {**facts, "fetched_at": datetime.fromisoformat(facts["fetched_at"])}


@dataclass(frozen=True)
class Bench:
    """What a worker keeps open."""

    mapillary: Mapillary
    lake: Lake
    settings: CollectSettings
    take: Callable[[Candidate, "Bench"], Awaitable[dict[str, Any]]] | None = None  # of an estimate, which fetches none
    notes: Notes = field(default_factory=Notes)
    spool: Spool = field(default_factory=Spool)
    ended: frozenset[str] = frozenset()  # pictures that a check has found to be deleted

    @cached_property
    def pace(self) -> Pace:
        return Pace(FEWEST, MOST, computing)

    @cached_property
    def downloads(self) -> Downloads:
        return Downloads(self.mapillary, self.settings, self.lake.images, self.spool)

    @cached_property
    def tiles(self) -> TileCache:
        return TileCache(self.mapillary, self.settings.tiles_kept)

    def search(
        self, lat: float, lon: float, half_size_m: float, asked: Asked | None = None, since_s: float = 0.0
    ) -> Search:
        """The pictures in the box that reaches half_size_m from a point, best first; `asked` counts its requests."""
        service = self.mapillary.since(since_s) if isinstance(self.mapillary, RecallingMapillary) else self.mapillary
        return Search(service, self.tiles, self.settings, lat, lon, half_size_m, asked)


def items(inputs: Inputs, settings: CollectSettings) -> pl.DataFrame:
    """One item a place. The split is left out: moving a place to another split does not fetch it again."""
    places = inputs.frame("places").select(pl.col("place_id").alias("id"), "lat", "lon")
    # Neighbours follow each other, so that they find their vector tiles in the memory of a worker.
    ordered = places.sort(in_tile_order(places["lat"], places["lon"]), maintain_order=True)
    return with_what_it_has(ordered, inputs, NAME, prepared_with(settings, VERSION))


def open_bench(settings: CollectSettings, workshop: Workshop) -> Bench:
    notes = Notes.of(workshop.lake, NAME)
    mapillary = RecallingMapillary(workshop.connections.mapillary, notes)
    return Bench(
        mapillary,
        workshop.lake,
        settings,
        notes=notes,
        spool=Spool.of(workshop.lake, NAME),
        ended=ended_upstream(workshop.lake, NAME),
    )


async def work(item: dict[str, Any], bench: Bench) -> Outcome:
    """The place's pictures and what it still lacks, or why it has none."""
    async with bench.pace.turn():
        return await _collect(item, bench)


async def _collect(item: dict[str, Any], bench: Bench) -> Outcome:
    wishes = wishes_of(bench.settings)
    # A place with news is redone because something changed: what was said before the check that found it is outdated.
    news_at = item.get("news_at") if item.get("news") else None
    since_s = news_at.timestamp() if news_at else 0.0

    def open_search(half_size_m: float) -> Search:
        return bench.search(item["lat"], item["lon"], half_size_m, since_s=since_s)

    async def fetch(candidate: Candidate) -> dict[str, Any]:
        if bench.take:
            return await bench.take(candidate, bench)
        return await fetch_and_store(candidate, bench, since_s, seen_changed(item, candidate.source_id))

    async def fetch_or_keep(candidate: Candidate) -> dict[str, Any]:
        try:
            return await fetch(candidate)
        except Unusable:
            # What came instead is of no use, and nobody has deleted it: the bytes we have are still its picture.
            prepared = prepared_with(bench.settings, VERSION)
            facts = facts_before(item, candidate.source_id, str(candidate.kind), prepared, bench.lake)
            if facts is None:
                raise
            return facts

    async def take(candidate: Candidate) -> dict[str, Any]:
        if candidate.source_id in bench.ended:
            await _is_back(candidate.source_id, bench.mapillary)
        row = image_row(item["id"], candidate, bench.lake)
        facts = facts_had(item, candidate.source_id, str(candidate.kind), bench.lake)
        if facts is None:
            facts = await fetch_or_keep(candidate)
        return row | facts

    await fulfil(wishes, bench.settings.half_sizes_m, open_search, take)
    rows = [row for wish in wishes for row in wish.rows]
    short = [wish for wish in wishes if len(wish.rows) < wish.wanted]
    gaps = [gap_row(item["id"], wish) for wish in short]
    lacking = {"gaps": gaps} if gaps else {}
    return Kept({**lacking, "images": rows}) if rows else _rejected(short, lacking)


async def _is_back(source_id: str, mapillary: Mapillary) -> None:
    """`Unusable` if a picture that was deleted still is: searches show one for some time, and its host may have it."""
    try:
        await mapillary.image(source_id, ADDRESS)
    except ServiceError as error:
        if error.kind == "not_found":
            raise Unusable("deleted", "the service says that it does not exist, though its search shows it") from error
        raise


def image_row(place_id: str, candidate: Candidate, lake: Lake) -> dict[str, Any]:
    """The picture's row in `images`, but for the facts of its bytes.

    The place is part of the id: two places may be answered by the same picture, and each row needs its own key so
    that either place can be redone alone. The second one is removed later as an exact duplicate.
    """
    creator = candidate.creator or "unknown"
    return {
        "image_id": lake.name(SOURCE, candidate.source_id, place_id),
        "kind": candidate.kind,
        "place_id": place_id,
        "lat": candidate.lat,
        "lon": candidate.lon,
        "source": SOURCE,
        "source_id": candidate.source_id,
        "sequence_id": candidate.sequence_id,
        "compass_angle": candidate.compass_angle,
        "licence": LICENCE,
        "creator": creator,
        # The licence asks for a way to the work; no model or tool is shown this column.
        "attribution": f"Image {candidate.source_id} by {creator} on Mapillary, {LICENCE}",
        "captured_at": candidate.captured_at,
        "metadata_json": json.dumps(
            {
                "camera_type": candidate.camera_type,
                "quality": candidate.quality,
                "distance_m": round(candidate.distance_m, 1),
            },
            sort_keys=True,
        ),
    }


def gap_row(place_id: str, wish: Wish) -> dict[str, Any]:
    """What a place lacks, as a row of `gaps`."""
    return {
        "place_id": place_id,
        "kind": wish.kind,
        "wanted": wish.wanted,
        "got": len(wish.rows),
        "reason": wish.reason,
        "evidence_json": json.dumps(wish.evidence, sort_keys=True, ensure_ascii=False),
    }


def _rejected(wishes: list[Wish], rows: dict[str, list[dict[str, Any]]]) -> Rejected:
    reasons = {wish.reason for wish in wishes}
    reason = reasons.pop() if len(reasons) == 1 else "no_usable_image"
    return Rejected(reason, {wish.kind: {"reason": wish.reason, **wish.evidence} for wish in wishes}, rows)


STAGE = Stage(
    name=NAME,
    reads=("places", "images", "checks"),
    writes=("gaps", "images"),
    items=items,
    work=work,
    open=open_bench,
    # Waiting for the service, not computing: many places at a time in each worker.
    resources=Resources(cpus=1, concurrency=MOST, chunk=2),
    services=("mapillary",),
    aside=BESIDE,
)
