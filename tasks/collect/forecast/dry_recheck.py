"""What re-checks would cost: a few of the pictures that are due are asked for, and what is new is scaled up."""

import math
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from schemas.settings.collect import CollectSettings
from tasks.collect import recheck
from tasks.collect.forecast.dry import BYTES_PER_PIXEL, PIXELS, DryStreets
from tasks.collect.forecast.sampling import Figure, draw, total
from tasks.collect.forecast.tempo import Stretch, in_stretches, side_by_side
from tasks.services import ServiceError

_GUESS = BYTES_PER_PIXEL * PIXELS


@dataclass
class Seen:
    """One picture that is due: whether it is still there, and whether other bytes would come."""

    place_id: str
    source_id: str
    gone: bool
    lost: bool = False  # its file: then not the check fetches it, but its place
    whole_bytes: float = 0.0  # that a check would receive, where there is no validator or it has changed

    @property
    def is_news(self) -> bool:
        return self.gone or self.lost or self.whole_bytes > 0


@dataclass
class Ahead:
    """The re-checks of a run, from a sample."""

    images: int
    seen: list[Seen] = field(default_factory=list)
    bytes_each: float = 0.0  # of metadata
    asks_host: bool = True
    stretches: list[Stretch] = field(default_factory=list)

    def kinds(self) -> dict[str, tuple[Figure, Figure]]:
        """(requests, bytes) by kind."""
        # A list that names an unknown picture is asked for again without it, and then that picture by itself.
        lists = math.ceil(self.images / recheck.AT_ONCE)
        found = {
            "entity": (
                self._total([2.0 * one.gone for one in self.seen]) + Figure(lists, lists, lists),
                self._total([self.bytes_each * (not one.gone) for one in self.seen]),
            )
        }
        if self.asks_host:
            asked = self._total([float(not (one.gone or one.lost)) for one in self.seen])
            found["picture"] = asked, self._total([one.whole_bytes for one in self.seen])
        return found

    def _total(self, values: list[float]) -> Figure:
        return total(values, self.images)

    @property
    def scale(self) -> float:
        """How many pictures each of the sample stands for."""
        return self.images / max(1, len(self.seen))

    def notes(self) -> list[str]:
        gone, lost, changed = (
            round(self.scale * sum(news))
            for news in zip(*((one.gone, one.lost, one.whole_bytes > 0) for one in self.seen), strict=True)
        )
        found = [f"about {gone:,} pictures are gone upstream"] if gone else []
        found += [f"the files of about {lost:,} pictures are lost"] if lost else []
        found += [f"about {changed:,} pictures have changed upstream, or cannot tell and come again"] if changed else []
        return [f"{note}; their places are done again" for note in found]


async def look_ahead(due: pl.DataFrame, streets: DryStreets, settings: CollectSettings, at_once: int) -> Ahead:
    """Ask for some of the pictures that are due: one list of them, and for each whether it changed."""
    found = Ahead(due.height, asks_host=settings.refresh.bytes == "always")
    drawn = draw(due, settings.estimate.seed, by="source_id").head(recheck.AT_ONCE)
    before = streets.meter.asked.bytes["entity"]
    known = await streets.mapillary.images_by_id(drawn["source_id"].to_list(), recheck.FIELDS)
    found.bytes_each = (streets.meter.asked.bytes["entity"] - before) / max(1, len(known))

    async def one(item: dict[str, Any]) -> Seen:
        row = known.get(item["source_id"])
        seen = Seen(item["place_id"], item["source_id"], row is None, row is not None and item["lost"])
        if row is not None and not seen.lost and found.asks_host:
            seen.whole_bytes = await _whole_bytes(streets, row.get("thumb_original_url"), item["etag"])
        return seen

    for count, beside in in_stretches(drawn.height, at_once):
        part = drawn.slice(len(found.seen), count).iter_rows(named=True)
        seen, stretch = await side_by_side(part, one, beside)
        if found.seen or drawn.height == 1:
            found.stretches.append(stretch)
        found.seen += seen
    return found


async def _whole_bytes(streets: DryStreets, url: Any, etag: str | None) -> float:
    """The bytes a check would receive: none where the host's validator is the one that is known."""
    if not isinstance(url, str):
        return 0.0
    try:
        outline = await streets.mapillary.outline(url)
    except ServiceError as error:
        if error.retryable or error.kind == "auth":
            raise
        return 0.0
    if etag is not None and outline.etag == etag:
        return 0.0
    return float(outline.size or _GUESS)
