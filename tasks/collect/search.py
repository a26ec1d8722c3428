"""The pictures around a place, best first, asked for no further than needed.

Boxes still to be searched, images seen on tiles and pictures with all their details wait in queues by the best score
they can have. A picture comes out when nothing that waits can beat it; until then the most promising box or image is
looked into. So what comes out is what a search of everything would put first, mostly for one request.

A box that answers with many pictures is not believed: the service silently leaves some out where it is crowded, and
says so only when it is very crowded. Such a box is looked at by its tiles, which are complete, or in quarters.
"""

import asyncio
import heapq
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from schemas.settings.collect import CollectSettings
from tasks.collect.boxes import Box, boxes_around
from tasks.collect.candidates import FIELDS, Candidate, Kind, read_candidate
from tasks.collect.choose import Queue, best_score_m, usable
from tasks.collect.tile_cache import TileCache
from tasks.collect.tiles import UNKNOWN_TIME, tiles_of
from tasks.geo import distance_km
from tasks.services import Mapillary, ServiceError

FULL_PAGE = 2000  # the service's limit: a page this long has left pictures out
AT_ONCE = 50  # details a request
TILES_FOR_QUARTERS = 4  # tiles are taken where they cost no more requests than the quarters of a box
SMALLEST_BOX_M = 50.0  # not split further
# How far the position corrected by matching may lie from the one that boxes and tiles go by. Farther off, a picture
# may come out later than its score deserves; it is found all the same.
SHIFT_M = 50.0
_TILE_MARGIN_DEG = 5e-5  # of a tile's whole units, at any latitude with roads
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KINDS: tuple[Kind, Kind] = ("panorama", "photo")


@dataclass
class Asked:
    """Requests that a place has cost."""

    boxes: int = 0
    tiles: int = 0
    details: int = 0

    @property
    def total(self) -> int:
        return self.boxes + self.tiles + self.details


@dataclass
class Seen:
    """What there was of one kind, for the record."""

    pictures: int = 0
    nearest_m: float | None = None
    too_small: int = 0

    def add(self, distance_m: float) -> None:
        self.pictures += 1
        self.nearest_m = distance_m if self.nearest_m is None else min(distance_m, self.nearest_m)


@dataclass(order=True)
class _Sighting:
    """An image on a tile, by the best score it can have."""

    score_m: float
    source_id: str
    distance_m: float = field(compare=False)


class Search:
    """What lies in the box that reaches half_size_m from a point."""

    def __init__(
        self, mapillary: Mapillary, tiles: TileCache, settings: CollectSettings, lat: float, lon: float,
        half_size_m: float, asked: Asked | None = None,
    ) -> None:  # fmt: skip
        self._mapillary, self._tiles, self._settings = mapillary, tiles, settings
        self._lat, self._lon = lat, lon
        self._area = boxes_around(lat, lon, half_size_m)
        self._boxes: list[tuple[float, Box]] = []
        for box in self._area if settings.find != "tiles" else self._tile_boxes():
            self._push(box)
        self._sightings: dict[Kind, list[_Sighting]] = {kind: [] for kind in _KINDS}
        self._details_left = dict.fromkeys(_KINDS, settings.looked_at)
        self._queues = {kind: Queue(settings) for kind in _KINDS}
        self._met: set[str] = set()  # each picture counts once, though boxes share edges and tiles overlap
        self._requests = 0
        self._lock = asyncio.Lock()  # both kinds come from the same answers
        self.asked = asked if asked is not None else Asked()
        self.seen: dict[Kind, Seen] = {kind: Seen() for kind in _KINDS}
        self.unsearched = 0  # boxes that were given up
        self.odd: Counter[str] = Counter()  # pictures of no clear kind, or gone since the tile was made

    async def next(self, kind: Kind) -> Candidate | None:
        """The best picture that has not come out yet; None when there is no more."""
        async with self._lock:
            queue, sightings = self._queues[kind], self._sightings[kind]
            while True:
                best = queue.best()
                limit_m = None if best is None or best[0] or best[1] else best[2]
                if self._boxes and (limit_m is None or self._boxes[0][0] <= limit_m):
                    promising = sightings[0].score_m if sightings else None
                    # A nearer sighting can save the search of a farther box, never the other way round.
                    if promising is None or self._boxes[0][0] <= promising:
                        await self._look_into_boxes()
                        continue
                if sightings and (limit_m is None or sightings[0].score_m <= limit_m):
                    await self._look_into_sightings(kind)
                    continue
                return None if best is None else queue.pop()

    def take(self, candidate: Candidate) -> None:
        """Note that a picture was taken for the place: others of its sequence are less wanted now."""
        if candidate.kind is not None:
            self._queues[candidate.kind].take(candidate)

    def _tile_boxes(self) -> list[Box]:
        """The area, tile by tile."""
        pieces = []
        for box in self._area:
            for name in tiles_of(box):
                tile = name.box
                pieces.append(
                    Box(
                        max(box.south, tile.south), max(box.west, tile.west),
                        min(box.north, tile.north), min(box.east, tile.east),
                    )
                )  # fmt: skip
        return pieces

    def _push(self, box: Box) -> None:
        distance_m = max(0.0, box.distance_m(self._lat, self._lon) - SHIFT_M)
        # The newest there can be: a box does not say how old its pictures are.
        heapq.heappush(self._boxes, (distance_m - self._settings.quality_bonus_m, box))

    async def _look_into_boxes(self) -> None:
        """Search all boxes that are nearest: those that touch the place are needed in any case."""
        nearest_m = self._boxes[0][0]
        together: list[Box] = []
        while self._boxes and self._boxes[0][0] == nearest_m and len(together) < 4:
            together.append(heapq.heappop(self._boxes)[1])
        left = self._settings.search_requests - self._requests
        if left <= 0:
            self.unsearched += len(together) + len(self._boxes)
            self._boxes.clear()
            return
        await asyncio.gather(*(self._search(box) for box in together))

    async def _search(self, box: Box) -> None:
        find, tiles = self._settings.find, tiles_of(box)
        if find == "tiles" or (find == "auto" and all(name in self._tiles for name in tiles)):
            await self._search_tiles(box)
            return
        self._requests += 1
        self.asked.boxes += 1
        rows: list[dict[str, Any]] | None = None
        try:
            rows = await self._mapillary.images_in_box(
                box.west, box.south, box.east, box.north, FIELDS, None, FULL_PAGE
            )
        except ServiceError as error:
            if error.kind not in ("too_big", "too_dense"):
                raise
        if rows is not None:
            self._add_rows(rows)
            if len(rows) < self._settings.crowded_rows:
                return
        trouble: ServiceError | None = None
        if find == "auto" and len(tiles) <= TILES_FOR_QUARTERS:
            try:
                await self._search_tiles(box)
                return
            except ServiceError as error:
                trouble = error
        if box.height_m >= 2 * SMALLEST_BOX_M:
            for quarter in box.quarters():
                self._push(quarter)
        elif trouble is not None:
            raise trouble  # what boxes cannot tell, tiles may another time
        else:
            self.unsearched += 1

    async def _search_tiles(self, box: Box) -> None:
        for name in tiles_of(box):
            images, asked = await self._tiles.get(name)
            self._requests += asked
            self.asked.tiles += asked
            for i in images.inside(box, _TILE_MARGIN_DEG):
                self._sight(
                    str(images.ids[i]), float(images.lat[i]), float(images.lon[i]),
                    int(images.captured_at_ms[i]), int(images.is_pano[i]),
                )  # fmt: skip

    def _sight(self, source_id: str, lat: float, lon: float, captured_at_ms: int, is_pano: int) -> None:
        if source_id in self._met:
            return
        self._met.add(source_id)
        distance_m = distance_km(self._lat, self._lon, lat, lon) * 1000.0
        captured_at = None if captured_at_ms == UNKNOWN_TIME else _moment(captured_at_ms)
        score_m = best_score_m(max(0.0, distance_m - SHIFT_M), captured_at, self._settings)
        kind: Kind = "panorama" if is_pano == 1 else "photo"
        self.seen[kind].add(distance_m)
        heapq.heappush(self._sightings[kind], _Sighting(score_m, source_id, distance_m))

    async def _look_into_sightings(self, kind: Kind) -> None:
        """Ask for the details of the most promising images."""
        sightings = self._sightings[kind]
        count = min(AT_ONCE, len(sightings), self._details_left[kind])
        batch = [heapq.heappop(sightings) for _ in range(count)]
        self._details_left[kind] -= count
        if not batch:
            sightings.clear()
            return
        self.asked.details += 1
        rows = await self._mapillary.images_by_id([one.source_id for one in batch], FIELDS)
        self.odd["gone"] += len(batch) - len(rows)
        for row in rows.values():
            candidate = read_candidate(row, self._lat, self._lon)
            # A tile's position is rounded: only now is it known which side of the edge a picture is on.
            if candidate is not None and any(box.holds(*candidate.found_at) for box in self._area):
                self._queue(candidate)

    def _add_rows(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            candidate = read_candidate(row, self._lat, self._lon)
            if candidate is None or candidate.source_id in self._met:
                continue
            self._met.add(candidate.source_id)
            if candidate.kind is not None:
                self.seen[candidate.kind].add(candidate.distance_m)
            self._queue(candidate)

    def _queue(self, candidate: Candidate) -> None:
        if candidate.kind is None:
            self.odd["unclear_kind"] += 1
        elif usable(candidate, self._settings):
            self._queues[candidate.kind].add(candidate)
        else:
            self.seen[candidate.kind].too_small += 1


def _moment(milliseconds: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
