"""Dense towns: a search within its limits finds what is there, and where it cannot, does not say there is none."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from schemas.settings.collect import CollectSettings
from tasks.collect.providers.mapillary.streets import MapillaryStreets
from tasks.collect.search import Search
from tasks.collect.targets import Target, collect_targets, targets_of
from tasks.collect.tiles import TileImages, TileName
from tasks.services import ServiceError

LAT, LON = 48.85, 2.35
TAKEN_MS = 1_700_000_000_000


class Town:
    """A service with very many pictures, none of them drawn: it thins boxes, refuses crowded ones and has tiles."""

    def __init__(self, photos: int, thins_at: int = 150, refuses_at: int = 1000) -> None:
        chance = np.random.default_rng(1)
        self.lat = np.append(LAT + chance.uniform(-0.0449, 0.0449, photos), LAT + 0.040)
        self.lon = np.append(LON + chance.uniform(-0.068, 0.068, photos), LON + 0.055)
        self.is_pano = np.append(np.zeros(photos, np.int8), np.int8(1))  # one, in the far corner of the widest box
        self.thins_at, self.refuses_at = thins_at, refuses_at
        self.tiles_out: ServiceError | None = None
        self.asked: Counter[str] = Counter()
        self.remembered: set[TileName] = set()

    def row(self, k: int) -> dict[str, Any]:
        point = {"coordinates": [float(self.lon[k]), float(self.lat[k])]}
        size = {"width": 2000, "height": 1000, "captured_at": TAKEN_MS}
        return {"id": str(k + 1), "geometry": point, "is_pano": bool(self.is_pano[k]), **size}

    async def images_in_box(self, west: float, south: float, east: float, north: float, *_: Any) -> list[Any]:
        self.asked["boxes"] += 1
        inside = (self.lat >= south) & (self.lat <= north) & (self.lon >= west) & (self.lon <= east)
        found = np.flatnonzero(inside)
        if len(found) > self.refuses_at:
            raise ServiceError("mapillary", "too_dense", "reduce the amount of data")
        return [self.row(int(k)) for k in found[: self.thins_at]]

    async def images_by_id(self, ids: list[str], _: Any) -> dict[str, Any]:
        self.asked["details"] += 1
        return {one: self.row(int(one) - 1) for one in ids}

    async def get(self, name: TileName) -> TileImages:
        if self.tiles_out is not None:
            raise self.tiles_out
        box = name.box
        inside = (self.lat >= box.south) & (self.lat < box.north) & (self.lon >= box.west) & (self.lon < box.east)
        k = np.flatnonzero(inside)
        times = np.full(len(k), TAKEN_MS)
        self.asked["tiles"] += name not in self.remembered
        self.remembered.add(name)
        return TileImages((k + 1).astype(np.uint64), self.lat[k], self.lon[k], times, self.is_pano[k])

    async def panorama(self, **settings: Any) -> Target:
        wanted = CollectSettings(photos=0, crowded_rows=50, **settings)

        def open_search(half_size_m: float) -> Search:
            service: Any = self
            return Search(MapillaryStreets(service), service, wanted, LAT, LON, half_size_m)

        async def take(candidate: Any) -> dict[str, Any]:
            return {"id": candidate.source_id}

        (wish,) = targets_of(wanted)
        await collect_targets([wish], wanted.half_sizes_m, open_search, take)
        return wish


@pytest.mark.parametrize("photos", [300, 3_000, 10_000])
@pytest.mark.parametrize("find", ["auto", "tiles"])
async def test_one_panorama_among_the_photos_of_a_town_is_found(photos: int, find: str) -> None:
    town = Town(photos)
    wish = await town.panorama(find=find)
    assert [row["id"] for row in wish.rows] == [str(photos + 1)]
    assert town.asked.total() <= 130  # three searches, the widest of which may ask 100 times


async def test_a_search_that_was_cut_short_does_not_say_there_is_none() -> None:
    wish = await Town(3_000).panorama(find="boxes")
    assert wish.rows == [] and wish.reason == "not_all_searched" and wish.evidence["unsearched_boxes"] > 0
    short = await Town(3_000).panorama(find="tiles", search_requests=20)
    assert short.reason == "not_all_searched"
    # Where all was searched it says so.
    town = Town(300)
    town.is_pano[:] = 0
    assert (await town.panorama(find="boxes")).reason == "no_panorama_near"


async def test_what_is_left_of_the_requests_counts_tiles_that_were_remembered_too() -> None:
    """Else a place would get more because its neighbour was collected first."""
    town = Town(10_000)
    first, asked = await town.panorama(find="tiles", search_requests=40), town.asked["tiles"]
    second = await town.panorama(find="tiles", search_requests=40)
    assert first.evidence == second.evidence and town.asked["tiles"] == asked > 0


async def test_where_nothing_was_answered_the_place_fails() -> None:
    with pytest.raises(ServiceError, match="none of the boxes around a place was answered"):
        await Town(300, refuses_at=0).panorama(find="boxes", search_requests=10)


@pytest.mark.parametrize(("kind", "retryable"), [("outage", True), ("rate_limit", False), ("quota", False)])
async def test_where_tiles_are_out_and_boxes_do_not_suffice_the_place_waits(kind: Any, retryable: bool) -> None:
    town = Town(3_000)
    town.tiles_out = ServiceError("mapillary", kind, "try later", retryable=retryable)
    with pytest.raises(ServiceError, match="try later"):
        await town.panorama()
    town.tiles_out = ServiceError("mapillary", "auth", "no tiles for you")  # and never will be
    assert (await town.panorama()).reason == "not_all_searched"


async def test_pictures_that_were_not_looked_at_are_counted() -> None:
    town = Town(50)
    town.is_pano[:] = 1
    service: Any = town
    settings = CollectSettings(find="tiles", looked_at=7)
    search = Search(MapillaryStreets(service), service, settings, LAT, LON, 5000.0)
    found = 0
    while await search.next("panorama") is not None:
        found += 1
    assert found == 7 and search.odd["not_looked_at"] == search.seen["panorama"].pictures - 7 > 0
