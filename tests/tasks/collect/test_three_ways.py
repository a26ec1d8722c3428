"""Boxes, tiles and both together on the offline world: the same pictures, by counted requests."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from infra.offline.server import create_app, serving
from infra.offline.services.mapillary import Limits
from infra.offline.world import World
from schemas.settings.collect import CollectSettings
from schemas.settings.services import MapillaryEndpoint, ServicesSettings
from tasks.collect.boxes import boxes_around
from tasks.collect.providers.mapillary.client import Mapillary
from tasks.collect.providers.mapillary.streets import MapillaryStreets
from tasks.collect.search import Search
from tasks.collect.targets import collect_targets, targets_of
from tasks.collect.tile_cache import TileCache
from tasks.services import Connection, connect

# Ten times thinner than the real service still, and tight enough that a street of this world is a crowd.
LIMITS = Limits(crowd=12, dense=24)
CROWDED = 9
WAYS = ("boxes", "auto", "tiles")
PLACES = 6


@pytest.fixture(scope="module")
def world() -> World:
    return World(seed=7, size=200_000, pano_width=2048)


@pytest.fixture(scope="module")
def url(world: World) -> Iterator[str]:
    with serving(create_app(world, limits=LIMITS, warm=False)) as address:
        yield address


def spots(world: World) -> list[tuple[float, float]]:
    """Where cities have several streets, a little beside one of them."""
    cities = Counter(int(row) for row in world._city)
    crowded = {city for city, _ in cities.most_common(PLACES)}
    first = {int(row): index for index, row in reversed(list(enumerate(world._city))) if int(row) in crowded}
    return [(world.place(index).lat + 0.001, world.place(index).lon - 0.001) for index in first.values()]


class Counting(Mapillary):
    """Counts what it is asked."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.asked: Counter[str] = Counter()

    async def images_in_box(self, *box: Any) -> list[dict[str, Any]]:
        self.asked["boxes"] += 1
        return await super().images_in_box(*box)

    async def images_by_id(self, *asked: Any) -> dict[str, dict[str, Any]]:
        self.asked["details"] += 1
        return await super().images_by_id(*asked)

    async def tile(self, *place: Any) -> bytes:
        self.asked["tiles"] += 1
        return await super().tile(*place)


def client(url: str) -> Counting:
    services = ServicesSettings(mapillary=MapillaryEndpoint(base_url=f"{url}/mapillary", backoff_s=0))
    return Counting(connect(services, {}).street_view["mapillary"])


def requests(control: httpx.Client) -> dict[str, int]:
    counted: dict[str, int] = control.get("/control/log").json()["requests"]
    return counted


@pytest.mark.slow
@pytest.mark.parametrize("find", WAYS)
async def test_every_image_of_the_world_is_found(url: str, world: World, find: Any) -> None:
    settings = CollectSettings(find=find, crowded_rows=CROWDED, short_rows=0, panorama_min_pixels=1, photo_min_pixels=1)
    mapillary = client(url)
    tiles, hidden, total, asked = TileCache(MapillaryStreets(mapillary), settings.tiles_kept), 0, 0, mapillary.asked
    with httpx.Client(base_url=url, timeout=60) as control:
        control.delete("/control/log")
        for lat, lon in spots(world):
            search = Search(MapillaryStreets(mapillary), tiles, settings, lat, lon, 3000.0)
            found = set()
            for kind in ("panorama", "photo"):
                while (one := await search.next(kind)) is not None:
                    found.add(one.source_id)
            area = boxes_around(lat, lon, 3000.0, 0.01)
            there = {
                record.image_id for box in area for record in world.images_in(box.west, box.south, box.east, box.north)
            }
            assert found == there and search.unsearched == 0
            hidden += len(there) > LIMITS.crowd
            total += len(there)
        counted = requests(control)
    assert hidden >= 4 and total > 150  # in most of these places one box would have left images out
    assert counted["mapillary"] == asked["boxes"] + asked["details"]
    assert counted.get("mapillary-tiles", 0) == asked["tiles"]
    # Not absurd: a leaf holds fewer than nine pictures, so even boxes alone need far fewer requests than pictures.
    assert asked.total() <= total * {"boxes": 0.75, "auto": 0.5, "tiles": 0.75}[find]


async def choices(url: str, world: World, **settings: Any) -> tuple[list[list[str]], Counter[str]]:
    """What would be taken for each place, and what that costs, without fetching it."""
    wanted = CollectSettings(crowded_rows=CROWDED, short_rows=0, **settings)
    mapillary = client(url)
    tiles, chosen = TileCache(MapillaryStreets(mapillary), wanted.tiles_kept), []

    async def take(candidate: Any) -> dict[str, Any]:
        return {"id": candidate.source_id}

    for lat, lon in spots(world):

        def open_search(half_size_m: float, lat: float = lat, lon: float = lon) -> Search:
            return Search(MapillaryStreets(mapillary), tiles, wanted, lat, lon, half_size_m)

        wishes = targets_of(wanted)
        await collect_targets(wishes, wanted.half_sizes_m, open_search, take)
        chosen.append([row["id"] for wish in wishes for row in wish.rows])
    return chosen, mapillary.asked


@pytest.mark.slow
async def test_all_ways_choose_the_same_pictures(url: str, world: World) -> None:
    wanted = {"panoramas": 3, "photos": 2, "half_sizes_m": (500, 2000)}
    found = {find: await choices(url, world, find=find, **wanted) for find in WAYS}
    assert found["auto"][0] == found["boxes"][0] == found["tiles"][0]
    assert all(len(one) >= 1 for one in found["auto"][0])
    # Each way spends what it says: boxes no tiles, tiles no boxes; both together less than boxes alone.
    assert found["boxes"][1]["tiles"] == found["boxes"][1]["details"] == found["tiles"][1]["boxes"] == 0
    assert found["auto"][1].total() <= found["boxes"][1].total()


async def test_an_ordinary_place_costs_one_search(world: World) -> None:
    """Before any splitting, with the service's own limits: one request where a street has pictures enough."""
    with serving(create_app(world, warm=False)) as url:
        settings = CollectSettings(photos=0, short_rows=0)
        mapillary = client(url)
        with httpx.Client(base_url=url, timeout=60) as control:
            for index in range(10):
                place = world.place(index)
                if not any(record.is_pano for record in world.images(index)):
                    continue
                control.delete("/control/log")
                search = Search(
                    MapillaryStreets(mapillary),
                    TileCache(MapillaryStreets(mapillary), 1000),
                    settings,
                    place.lat,
                    place.lon,
                    500.0,
                )
                assert await search.next("panorama") is not None
                assert requests(control) == {"mapillary": 1}
