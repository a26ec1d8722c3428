"""Street-view pictures for every planned place, with licence, creator and sha256.

What one place gets depends only on the place, the settings and what the service holds, so a run that was killed
ends with the same rows when it is started again.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import polars as pl

from schemas.settings.collect import CollectSettings
from tasks.collect.candidates import Candidate, Kind, find, ranked
from tasks.collect.download import Unusable, download
from tasks.collect.keeping import facts_had, prepared_with, with_what_it_has
from tasks.frame import Inputs, Kept, Outcome, Rejected, Resources, Stage, Workshop
from tasks.lake import Lake
from tasks.services import Mapillary

SOURCE = "mapillary"
LICENCE = "CC BY-SA 4.0"
NAME = "collect"
VERSION = 1  # raise it when other bytes are stored for the same picture and settings


async def fetch_and_store(candidate: Candidate, bench: "Bench") -> dict[str, Any]:
    """The picture's bytes, stored; what there is to say about them. `Unusable` when they are no picture."""
    picture = await download(bench.mapillary, candidate, bench.settings)
    return {
        "fetched_at": datetime.now(UTC),
        "request_url": picture.request_url,
        "http_status": 200,  # anything else is no picture
        "sha256": bench.lake.images.put(picture.data, picture.extension),
        "extension": picture.extension,
        "bytes": len(picture.data),
        "width": picture.width,
        "height": picture.height,
        "etag": picture.etag,
        "source_sha256": picture.source_sha256,
        "source_bytes": picture.source_bytes,
        "prepared": prepared_with(bench.settings, VERSION),
    }


@dataclass(frozen=True)
class Bench:
    """What a worker keeps open."""

    mapillary: Mapillary
    lake: Lake
    settings: CollectSettings
    take: Callable[[Candidate, "Bench"], Awaitable[dict[str, Any]]] = fetch_and_store  # an estimate takes nothing


@dataclass
class Wish:
    """Pictures of one kind wanted for a place, and what stood in the way."""

    kind: Kind
    wanted: int
    tries: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    tried: int = 0
    problems: list[dict[str, str]] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Fulfilled or given up."""
        return len(self.rows) == self.wanted or self.tried == self.wanted + self.tries - 1


def items(inputs: Inputs, settings: CollectSettings) -> pl.DataFrame:
    """One item a place. The split is left out: moving a place to another split does not fetch it again."""
    places = inputs.frame("places").select(pl.col("place_id").alias("id"), "lat", "lon")
    return with_what_it_has(places, inputs, NAME, prepared_with(settings, VERSION))


def open_bench(settings: CollectSettings, workshop: Workshop) -> Bench:
    return Bench(Mapillary(workshop.connections.mapillary), workshop.lake, settings)


async def work(item: dict[str, Any], bench: Bench) -> Outcome:
    """The place's pictures, or why it has none."""
    settings = bench.settings
    both = Wish("panorama", settings.panoramas, settings.tries), Wish("photo", settings.photos, settings.tries)
    wishes = [wish for wish in both if wish.wanted]
    half_size_m = 0.0
    for half_size_m in settings.half_sizes_m:
        kinds = {wish.kind for wish in wishes if not wish.over}
        is_pano = None if len(kinds) == 2 else "panorama" in kinds
        found = await find(bench.mapillary, item["lat"], item["lon"], half_size_m, is_pano)
        for wish in wishes:
            await _fulfil(wish, found, item, bench)
        if all(wish.over for wish in wishes):
            break
    rows = [row for wish in wishes for row in wish.rows]
    return Kept({"images": rows}) if rows else _rejected(wishes, half_size_m)


async def _fulfil(wish: Wish, found: list[Candidate], item: dict[str, Any], bench: Bench) -> None:
    new = [one for one in found if one.kind == wish.kind and one.source_id not in wish.seen]
    wish.seen.update(one.source_id for one in new)
    for candidate in ranked(new, bench.settings):
        if wish.over:
            return
        wish.tried += 1
        facts = facts_had(item, candidate.source_id, candidate.kind, bench.lake)
        try:
            facts = facts or await bench.take(candidate, bench)
        except Unusable as why:
            wish.problems.append({"source_id": candidate.source_id, "kind": why.kind, "detail": why.detail})
            continue
        wish.rows.append(image_row(item["id"], candidate, bench.lake) | facts)


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
        "attribution": f"Image {candidate.source_id} by {creator} on Mapillary, {LICENCE}",
        "captured_at": candidate.captured_at,
    }


def _rejected(wishes: list[Wish], half_size_m: float) -> Rejected:
    problems = [problem for wish in wishes for problem in wish.problems]
    kinds = {problem["kind"] for problem in problems}
    evidence: dict[str, Any] = {
        "half_size_m": half_size_m,
        "seen": sum(len(wish.seen) for wish in wishes),
        "tried": sum(wish.tried for wish in wishes),
    }
    if evidence["seen"] == 0:
        return Rejected("no_imagery_near", evidence)
    evidence["problems"] = problems[:10]
    if kinds and kinds <= {"truncated", "not_an_image"}:
        return Rejected("corrupt_image", evidence)
    return Rejected("no_usable_image", evidence)


STAGE = Stage(
    name=NAME,
    reads=("places", "images", "checks"),
    writes=("images",),
    items=items,
    work=work,
    open=open_bench,
    # Waiting for the service, not computing: many places at a time in each worker.
    resources=Resources(cpus=1, concurrency=8, chunk=2),
    services=("mapillary",),
    aside=("had",),  # what a place has makes it quicker, not another
)
