"""The pictures around a place, best first, requested no further than needed.

Boxes still to be searched, images seen on tiles and pictures with all their details wait in queues by the best score
they can have. A picture comes out when nothing that waits can beat it; until then the most promising box or image is
looked into. So what comes out is what a search of everything would put first, mostly for one request.

A box that answers with many pictures is not believed: the service silently leaves some out where it is crowded, and
says so only when it is very crowded. Such a box is looked at by its tiles, which are complete, or in quarters, as long
as these leave enough of the search's requests for the tiles of all that is still to be searched. Nor is a box that
answers with hardly any: its tiles say whether that is all.
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from schemas.settings.collect import CollectSettings
from tasks.collect.boxes import Box, boxes_around
from tasks.collect.candidates import Candidate, Kind, PictureRecord, candidate_of
from tasks.collect.choose import Queue, Rank, best_scores_m, usable
from tasks.collect.providers.provider import StreetViewProvider
from tasks.collect.tile_cache import TileCache
from tasks.collect.tile_candidates import KINDS, Seen, TileCandidates
from tasks.collect.tiles import TileImages, TileName, by_tile, tiles_of
from tasks.geo.distance import distance_km
from tasks.services import ServiceError

TILES_FOR_QUARTERS = 4  # tiles are taken where they cost no more requests than the quarters of a box
SMALLEST_BOX_M = 50.0  # not split further
# How far the position corrected by matching may lie from the one that boxes and tiles go by. Farther off, a picture
# may come out later than its score deserves; it is still found.
SHIFT_M = 50.0
_TILE_MARGIN_DEG = 5e-5  # of a tile's whole units, at any latitude with roads

InBox = Callable[[Box], Awaitable[list[PictureRecord]]]


class Search:
    """What a provider has in the box that reaches half_size_m from a point."""

    def __init__(
        self,
        provider: StreetViewProvider,
        tiles: TileCache,
        settings: CollectSettings,
        lat: float,
        lon: float,
        half_size_m: float,
        in_box: InBox | None = None,  # asks for a box, where it is not the provider itself
    ) -> None:
        self._provider, self._tiles, self._settings = provider, tiles, settings
        self._in_box = in_box or provider.in_box
        self._lat, self._lon = lat, lon
        layer = provider.limits.layer
        self._find, self._zoom = (settings.find, layer.zoom) if layer else ("boxes", 0)
        self._area = boxes_around(lat, lon, half_size_m, provider.limits.box_sq_deg)
        self._boxes: list[tuple[float, Box, bool]] = []  # the best score in it; whether it is searched by its tile
        for box in self._area:
            if self._find == "tiles":
                self._push(by_tile(box, self._zoom), on_one_tile=True)
            else:
                self._push([box])
        self._read: set[TileName] = set()
        self._tile_trouble: ServiceError | None = None
        self._tile_candidates = TileCandidates(settings.looked_at, provider.limits.ids)
        self._queues = {kind: Queue(settings) for kind in KINDS}
        self._met: set[str] = set()  # each picture counts once, though boxes share edges and tiles overlap
        self._requests = 0
        self._lock = asyncio.Lock()  # both kinds come from the same answers
        self.seen: dict[Kind, Seen] = {kind: Seen() for kind in KINDS}
        self.unsearched = 0  # boxes that were given up
        self.odd: Counter[str] = Counter()  # pictures that count for no kind: of no clear kind or place, gone, ...
        self._placed = 0  # pictures that say where they are
        self._answers = 0  # boxes and tiles that were not refused

    async def next(self, kind: Kind) -> Candidate | None:
        """The best picture that has not come out yet; None when there is no more."""
        async with self._lock:
            queue = self._queues[kind]
            while True:
                best = queue.best()
                limit_m = None if best is None or best[0] or best[1] else best[2]
                if self._boxes and (limit_m is None or self._boxes[0][0] <= limit_m):
                    promising = self._tile_candidates.best(kind)
                    # A nearer tile candidate can save the search of a farther box, never the other way round.
                    if promising is None or self._boxes[0][0] <= promising:
                        await self._look_into_boxes()
                        continue
                promising = self._tile_candidates.best(kind)
                if promising is not None and (limit_m is None or promising <= limit_m):
                    await self._ask_details(kind)
                    continue
                return None if best is None else queue.pop()

    def put_back(self, candidate: Candidate) -> Rank:
        """Let a picture that came out wait again; says where it stands."""
        assert candidate.kind is not None, "a picture of no clear kind does not come out"
        queue = self._queues[candidate.kind]
        queue.add(candidate)
        return queue.rank(candidate)

    @property
    def trouble(self) -> ServiceError | None:
        """Set when what was found, or not found, says more about the service than about the place."""
        tiles = self._tile_trouble
        unsettled = self.unsearched or not self._met  # boxes given up, or a place where nothing seems to be
        if unsettled and tiles is not None and (tiles.retryable or tiles.kind in ("rate_limit", "quota")):
            return tiles  # out, or the day's are used up: another time they settle it
        if self.unsearched and not self._answers:
            detail = f"none of the boxes around a place was answered, {self.unsearched} were given up"
            return ServiceError(self._provider.name, "too_dense", detail)
        lost = self.odd["no_position"] + self.odd["elsewhere"]
        if not lost or self._placed:
            return None
        detail = f"none of {lost} pictures around a place has a position that can be read and lies there"
        return ServiceError(self._provider.name, "bad_response", detail)

    def take(self, candidate: Candidate) -> None:
        """Note that a picture was taken for the place: others of its sequence are less wanted now."""
        if candidate.kind is not None:
            self._queues[candidate.kind].take(candidate)

    def _push(self, boxes: list[Box], on_one_tile: bool = False) -> None:
        for box in boxes:
            distance_m = max(0.0, box.distance_m(self._lat, self._lon) - SHIFT_M)
            # The newest there can be: a box does not say how old its pictures are.
            heapq.heappush(self._boxes, (distance_m - self._settings.quality_bonus_m, box, on_one_tile))

    async def _look_into_boxes(self) -> None:
        """Search all boxes that are nearest: those that touch the place are needed in any case."""
        nearest_m = self._boxes[0][0]
        if self._left <= 0:
            self.unsearched += len(self._boxes)
            self._boxes.clear()
            return
        together: list[tuple[Box, bool]] = []
        while self._boxes and self._boxes[0][0] == nearest_m and len(together) < 4:
            together.append(heapq.heappop(self._boxes)[1:])
        crowded = await asyncio.gather(*(self._search(*box) for box in together))
        # Only now is it known what all of them need.
        self._split([box for box in crowded if box is not None])

    @property
    def _left(self) -> int:
        return self._settings.search_requests - self._requests

    async def _search(self, box: Box, on_one_tile: bool) -> Box | None:
        """Look into a box; it comes back if it is to be looked at in pieces."""
        if on_one_tile:
            if not await self._search_tiles(box):
                self._push([box])
            return None
        # Also where its tiles are remembered a box comes first: what a place gets must not depend on its neighbours.
        rows = await self._ask_box(box)
        if rows is not None and rows < self._settings.crowded_rows:
            if self._provider.limits.leaves_out and self._find == "auto" and rows < self._settings.short_rows:
                await self._check_short_answer(box)
            return None
        if self._find == "auto" and len(self._tiles_of(box)) <= TILES_FOR_QUARTERS and await self._search_tiles(box):
            return None
        if box.height_m >= 2 * SMALLEST_BOX_M:
            return box
        if self._tile_trouble is not None:
            raise self._tile_trouble  # what boxes cannot tell, tiles may another time
        self.unsearched += 1
        return None

    async def _ask_box(self, box: Box) -> int | None:
        """Ask for a box; how many pictures were answered, None if it must be split."""
        self._requests += 1
        try:
            records = await self._in_box(box)
        except ServiceError as error:
            if error.kind not in ("too_big", "too_dense"):
                raise
            return None
        self._answers += 1
        self._add_records(records)
        return len(records)

    async def _check_short_answer(self, box: Box) -> None:
        """Look again where few pictures or none were answered: the service at times leaves out even all of a few.

        Tiles are complete and have the last word; where there are too many of them the box is requested once more.
        """
        if len(self._tiles_of(box)) <= TILES_FOR_QUARTERS:
            await self._search_tiles(box)
        elif self._left > 0:
            await self._ask_box(box)

    def _split(self, crowded: list[Box]) -> None:
        """Crowded boxes in quarters; or tile by tile, once quarters would leave too little for the tiles."""
        needed = {name for _, box, _ in self._boxes for name in self._tiles_of(box)}
        needed |= {name for box in crowded for name in self._tiles_of(box)}
        needed -= self._read
        for box in crowded:
            is_now_or_never = len(needed) <= self._left < len(needed) + 4 * len(crowded)
            if self._find == "auto" and self._tile_trouble is None and is_now_or_never:
                self._push(by_tile(box, self._zoom), on_one_tile=True)
            else:
                self._push(box.quarters())

    def _tiles_of(self, box: Box) -> list[TileName]:
        return tiles_of(box, self._zoom)

    async def _search_tiles(self, box: Box) -> bool:
        """Look at a box's tiles; False if they cannot be had and boxes must do."""
        for name in self._tiles_of(box):
            try:
                images = await self._tiles.get(name)
            except ServiceError as error:
                if self._find == "tiles":
                    raise
                self._tile_trouble = error
                return False
            # Also one that was remembered: how far a search goes must not depend on the places before it.
            self._requests += name not in self._read
            self._read.add(name)
            self._answers += 1
            self._add_tile_images(images, images.inside(box, _TILE_MARGIN_DEG))
        return True

    def _add_tile_images(self, images: TileImages, which: NDArray[np.intp]) -> None:
        names = images.names(which)
        new = [k for k, name in enumerate(names) if name not in self._met]
        which, names = which[new], [names[k] for k in new]
        self._met.update(names)
        distances_m = distance_km(self._lat, self._lon, images.lat[which], images.lon[which]) * 1000.0
        scores_m = best_scores_m(np.maximum(distances_m - SHIFT_M, 0.0), images.captured_at_ms[which], self._settings)
        is_pano = images.is_pano[which]
        for kind, flag in zip(KINDS, (1, 0), strict=True):
            self.seen[kind].add(distances_m[is_pano == flag])  # those of neither, once their details are known
        self._tile_candidates.add(names, scores_m, is_pano)

    async def _ask_details(self, kind: Kind) -> None:
        """Ask for the details of the most promising images."""
        batch = self._tile_candidates.next_batch(kind)
        if not batch:
            self.odd["not_looked_at"] += self._tile_candidates.give_up(kind)
            return
        records = await self._provider.by_id(batch)
        self.odd["gone"] += len(batch) - len(records)
        for record in records.values():
            candidate = candidate_of(record, self._lat, self._lon)
            if candidate is None:
                self.odd["no_position"] += 1
                continue
            if not self._is_around(candidate):
                continue
            if candidate.kind is not None and self._tile_candidates.is_open(candidate.source_id):
                self.seen[candidate.kind].add([candidate.distance_m])
            # A tile's position is rounded: only now is it known which side of the edge a picture is on.
            if any(box.holds(*candidate.found_at) for box in self._area):
                self._queue(candidate)

    def _add_records(self, records: list[PictureRecord]) -> None:
        for record in records:
            name = record.source_id
            if name in self._met:
                continue
            if name:
                self._met.add(name)
            candidate = candidate_of(record, self._lat, self._lon) if name else None
            if candidate is None:
                self.odd["no_position" if name else "bad_id"] += 1
                if record.kind is not None:
                    self.seen[record.kind].pictures += 1  # somewhere in the box: the service searches by position
                continue
            if not self._is_around(candidate):
                continue
            if candidate.kind is not None:
                self.seen[candidate.kind].add([candidate.distance_m])
            self._queue(candidate)

    def _is_around(self, candidate: Candidate) -> bool:
        """Whether its camera was in the area; a service may answer with pictures of another continent."""
        if min(box.distance_m(*candidate.found_at) for box in self._area) > self._settings.max_shift_m:
            self.odd["elsewhere"] += 1
            return False
        self._placed += 1
        return True

    def _queue(self, candidate: Candidate) -> None:
        if candidate.kind is None:
            self.odd["unclear_kind"] += 1
        elif candidate.licence is None:
            self.odd["no_licence"] += 1
        elif candidate.shift_m > self._settings.max_shift_m:
            self.odd["unclear_position"] += 1
        elif usable(candidate, self._settings):
            self._queues[candidate.kind].add(candidate)
        else:
            self.seen[candidate.kind].too_small += 1


class PlaceSearch(Protocol):
    """Pictures around a place, best first, and what was seen."""

    @property
    def seen(self) -> Mapping[Kind, Seen]: ...

    @property
    def unsearched(self) -> int: ...

    @property
    def odd(self) -> Counter[str]: ...

    @property
    def trouble(self) -> ServiceError | None: ...

    async def next(self, kind: Kind) -> Candidate | None: ...

    def take(self, candidate: Candidate) -> None: ...


class SeveralSearches:
    """The searches of several providers as one: in their order, or by the best score."""

    def __init__(self, searches: list[Search], prefer: Literal["order", "nearest"]) -> None:
        self._searches, self._prefer = searches, prefer

    async def next(self, kind: Kind) -> Candidate | None:
        """The best picture that has not come out yet; None when there is no more."""
        best: tuple[Rank, Search, Candidate] | None = None
        for search in self._searches:
            candidate = await search.next(kind)
            if candidate is None:
                continue
            if self._prefer == "order":
                return candidate
            rank = search.put_back(candidate)
            if best is None or rank < best[0]:
                best = rank, search, candidate
        return None if best is None else await best[1].next(kind)

    def take(self, candidate: Candidate) -> None:
        """Note that a picture was taken for the place."""
        for search in self._searches:
            search.take(candidate)

    @property
    def trouble(self) -> ServiceError | None:
        """What one of the providers is in."""
        return next((search.trouble for search in self._searches if search.trouble is not None), None)

    @property
    def unsearched(self) -> int:
        return sum(search.unsearched for search in self._searches)

    @property
    def odd(self) -> Counter[str]:
        return sum((search.odd for search in self._searches), Counter())

    @property
    def seen(self) -> dict[Kind, Seen]:
        """What all of them have seen."""
        return {kind: _sum_of([search.seen[kind] for search in self._searches]) for kind in KINDS}


def _sum_of(parts: list[Seen]) -> Seen:
    nearest_m = min((part.nearest_m for part in parts if part.nearest_m is not None), default=None)
    return Seen(sum(part.pictures for part in parts), nearest_m, sum(part.too_small for part in parts))
