"""The search around a place: complete where the service is not, best first, and no more requests than that takes."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from schemas.settings.collect import CollectSettings
from tasks.collect.candidates import Candidate
from tasks.collect.choose import choose
from tasks.collect.providers.mapillary.client import Mapillary
from tasks.collect.providers.mapillary.streets import MapillaryStreets
from tasks.collect.search import Search
from tasks.collect.street_view import WorkerContext, work
from tasks.collect.tile_cache import TileCache
from tasks.collect.tiles import TileName
from tasks.lake import Lake
from tasks.runtime.runner import Kept
from tasks.services import ServiceError

LAT, LON = 50.0, 8.0
WAYS = ("boxes", "auto", "tiles")


def search(mapillary: Mapillary, half_size_m: float = 500.0, **settings: Any) -> Search:
    wanted, provider = CollectSettings(**settings), MapillaryStreets(mapillary)
    return Search(provider, TileCache(provider, wanted.tiles_kept), wanted, LAT, LON, half_size_m)


def requests(streets: Any) -> int:
    return int(streets.asked["images"] + streets.asked["tiles"] + streets.asked["many"])


async def drain(found: Search, kind: Any = "panorama") -> list[Candidate]:
    every = []
    while (one := await found.next(kind)) is not None:
        every.append(one)
    return every


def scatter(streets: Any, count: int, reach: float = 0.004, seed: int = 1) -> None:
    chance = random.Random(seed)
    for number in range(count):
        streets.put(
            str(1000 + number),
            lat=LAT + chance.uniform(-reach, reach),
            lon=LON + chance.uniform(-reach, reach),
            is_pano=chance.random() < 0.5,
            extra={"quality_score": chance.random(), "captured_at": 1_500_000_000_000 + number * 10**9},
        )


@pytest.mark.parametrize("find", WAYS)
@pytest.mark.parametrize("limits", [{"max_in_box": 20}, {"crowd": 12}, {"crowd": 12, "max_in_box": 25}])
async def test_every_picture_is_found_where_boxes_are_refused_or_come_back_thinner(
    streets: Any, find: Any, limits: dict[str, int]
) -> None:
    scatter(streets, 90)
    for name, value in limits.items():
        setattr(streets, name, value)
    found = search(streets.client(), find=find, crowded_rows=10)
    everything = [*await drain(found), *await drain(found, "photo")]
    assert {one.source_id for one in everything} == set(streets.shots)
    assert len(everything) == 90  # one on a shared edge comes once
    assert found.unsearched == 0
    assert requests(streets) <= 4 * 90 / 10 * 1.5  # leaves of at most 10 pictures, and what leads to them


async def test_a_crowd_in_one_quarter_is_not_taken_for_whole_because_the_quarter_says_the_same(streets: Any) -> None:
    # All in the same quarter: it answers just as thin as the box around it.
    for number in range(40):
        streets.put(str(100 + number), lat=LAT + 0.001 + number * 7e-5, lon=LON + 0.003)
    streets.crowd = 12
    found = search(streets.client(), find="boxes", crowded_rows=10)
    assert {one.source_id for one in await drain(found)} == set(streets.shots)


@pytest.mark.parametrize("find", WAYS)
async def test_what_comes_first_is_what_a_search_of_everything_puts_first(streets: Any, find: Any) -> None:
    scatter(streets, 60)
    streets.crowd = 15
    whole = search(streets.client(), find="boxes", crowded_rows=10)
    everything = await drain(whole)
    for_all = requests(streets)
    found = search(streets.client(), find=find, crowded_rows=10)
    first = [await found.next("panorama") for _ in range(5)]
    assert [one and one.source_id for one in first] == [
        one.source_id for one in choose(everything, 5, CollectSettings(sequence_penalty_m=0, sequence_spacing_m=0))
    ]
    assert requests(streets) < 2 * for_all or find == "boxes"


async def test_a_box_that_cannot_hold_the_best_is_not_asked(streets: Any) -> None:
    streets.put("11", lat=LAT, lon=LON, extra={"quality_score": 1.0, "captured_at": 1_790_000_000_000})
    for number in range(30):  # far away in the corner of the box
        streets.put(str(100 + number), lat=LAT + 0.0035 + number * 1e-5, lon=LON + 0.0055)
    streets.crowd = 12
    found = search(streets.client(), find="boxes", crowded_rows=10)
    best = await found.next("panorama")
    assert best is not None and best.source_id == "11"
    # The box, its quarters, and of the crowded quarter the one that touches the place.
    assert streets.asked["images"] == 6


@pytest.mark.parametrize(("fault", "kind"), [("missing", None), ("outage", "outage"), ("garbage", "bad_response")])
async def test_tiles_that_fail(streets: Any, fault: str, kind: str | None) -> None:
    scatter(streets, 40)
    streets.tile_fault, streets.crowd = fault, 12
    found = search(streets.client(), find="tiles")
    if kind is None:
        assert await found.next("panorama") is None  # a tile that is not there has no images
    else:
        with pytest.raises(ServiceError) as caught:
            await found.next("panorama")
        assert caught.value.kind == kind and caught.value.retryable
    if fault != "missing":  # auto goes on with quarters and finds the same
        found = search(streets.client(), find="auto", crowded_rows=10)
        everything = [*await drain(found), *await drain(found, "photo")]
        assert {one.source_id for one in everything} == set(streets.shots)


async def test_tiles_that_are_forbidden_leave_the_boxes(streets: Any) -> None:
    scatter(streets, 40)
    streets.tile_fault, streets.crowd = "forbidden", 12
    found = search(streets.client(), find="auto", crowded_rows=10)
    assert len([*await drain(found), *await drain(found, "photo")]) == 40


async def test_where_boxes_end_and_tiles_are_out_the_place_waits(streets: Any) -> None:
    for number in range(30):
        streets.put(str(100 + number), lat=LAT, lon=LON)  # a camera that stood still
    streets.max_in_box, streets.tile_fault = 20, "outage"
    with pytest.raises(ServiceError) as caught:
        await drain(search(streets.client(), find="auto", crowded_rows=10))
    assert caught.value.retryable


async def test_a_camera_that_stood_still_is_seen_on_tiles_only(streets: Any) -> None:
    for number in range(30):
        streets.put(str(100 + number), lat=LAT, lon=LON)
    streets.max_in_box = 20
    assert len(await drain(search(streets.client(), find="auto", crowded_rows=10))) == 30
    given_up = search(streets.client(), find="boxes", crowded_rows=10)
    assert await drain(given_up) == [] and given_up.unsearched > 0


async def test_a_search_has_a_ceiling_and_says_what_it_left_out(streets: Any) -> None:
    scatter(streets, 90)
    streets.max_in_box = 5
    found = search(streets.client(), find="boxes", search_requests=9)
    nearest = await drain(found)
    assert streets.asked["images"] <= 12  # boxes that are equally near go together
    assert found.unsearched > 0 and len(nearest) < 90
    few = search(streets.client(), find="tiles", looked_at=7)
    assert len(await drain(few)) == 7 and few.seen["panorama"].pictures > 7


async def test_pictures_gone_since_the_tile_was_made_are_passed_over(streets: Any) -> None:
    scatter(streets, 20)
    gone = [shot_id for shot_id, shot in streets.shots.items() if shot.is_pano][:3]
    for shot_id in gone:
        streets.shots[shot_id].fault = "deleted"
    found = search(streets.client(), find="tiles")
    assert not {one.source_id for one in await drain(found)} & set(gone)
    assert found.odd["gone"] == 3


async def test_pictures_of_no_clear_kind_answer_no_wish(streets: Any) -> None:
    streets.put("11", lat=LAT, lon=LON, extra={"camera_type": "fisheye"})
    streets.put("12", lat=LAT + 0.001, lon=LON, extra={"camera_type": "spherical"})
    for find in WAYS:
        found = search(streets.client(), find=find)
        assert [one.source_id for one in await drain(found)] == ["12"]
        assert await drain(found, "photo") == [] and found.odd["unclear_kind"] == 1


async def test_odd_values_of_one_picture_do_not_fail_the_place(streets: Any, tmp_path: Path) -> None:
    huge = dict.fromkeys(("captured_at", "quality_score", "compass_angle"), 10**400)
    streets.put(
        "21", lat=LAT, lon=LON, extra={**huge, "camera_type": ["spherical"], "thumb_original_url": "https://[::1/x"}
    )
    streets.put("22", lat=LAT, lon=LON, extra={"thumb_original_url": "https://\u2100.com/x"})
    streets.put("23", lat=LAT + 0.0005, lon=LON)
    settings = CollectSettings(panorama_width=1024, photos=0, half_sizes_m=(100,))
    outcome = await work(
        {"id": "p", "lat": LAT, "lon": LON}, WorkerContext((streets.provider(),), Lake(tmp_path / "lake"), settings)
    )
    assert isinstance(outcome, Kept) and [row["source_id"] for row in outcome.rows["images"]] == ["23"]


@pytest.mark.parametrize("find", WAYS)
async def test_pictures_without_a_position_are_counted(streets: Any, find: Any) -> None:
    nowhere = {"computed_geometry": {"type": "Point"}, "position": {"coordinates": [LON, LAT]}}  # a field was renamed
    for number in range(3):
        streets.put(str(20 + number), lat=LAT + number * 1e-4, lon=LON, extra=nowhere)
    streets.put("31", lat=LAT, lon=LON, is_pano=False)
    found = search(streets.client(), find=find)
    assert await drain(found) == [] and [one.source_id for one in await drain(found, "photo")] == ["31"]
    assert found.odd["no_position"] == 3 and found.seen["panorama"].pictures == 3
    assert found.trouble is None  # one can be read, so it is these pictures that are odd


@pytest.mark.parametrize("find", WAYS)
async def test_a_place_whose_pictures_all_lack_a_position_fails(streets: Any, tmp_path: Path, find: Any) -> None:
    """It must not be called finished because the service speaks otherwise than we think."""
    for number in range(7):
        streets.put(str(20 + number), lat=LAT + number * 1e-4, lon=LON, extra={"computed_geometry": {"at": [LON, LAT]}})
    settings = CollectSettings(find=find, panorama_width=1024, half_sizes_m=(100, 300))
    table = WorkerContext((streets.provider(),), Lake(tmp_path / "lake"), settings)
    with pytest.raises(ServiceError, match="none of 7 pictures around a place has a position") as caught:
        await work({"id": "p", "lat": LAT, "lon": LON}, table)
    assert caught.value.kind == "bad_response"
    # Nearest ones odd, farther ones fine: the place gets these, and says what it passed over.
    streets.put("40", lat=LAT + 0.002, lon=LON)
    table = WorkerContext((streets.provider(),), Lake(tmp_path / "lake"), settings)  # remembers no tile
    outcome = await work({"id": "p", "lat": LAT, "lon": LON}, table)
    assert isinstance(outcome, Kept) and [row["source_id"] for row in outcome.rows["images"]] == ["40"]
    (gap,) = outcome.rows["gaps"]
    assert json.loads(gap["evidence_json"])["no_position"] == 7 and gap["reason"] == "no_photo_near"


async def test_a_tile_is_asked_for_once_for_all_its_places(streets: Any, tmp_path: Path) -> None:
    scatter(streets, 30, reach=0.001)
    settings = CollectSettings(find="tiles", panorama_width=1024, photos=0, half_sizes_m=(100,))
    table = WorkerContext((streets.provider(),), Lake(tmp_path / "lake"), settings)
    places = [{"id": f"p{k}", "lat": LAT + k * 1e-5, "lon": LON + k * 1e-5} for k in range(6)]
    outcomes = await asyncio.gather(*(work(place, table) for place in places))
    assert all(isinstance(outcome, Kept) for outcome in outcomes)
    tiles = {name: count for name, count in streets.asked.items() if name.startswith("tile ")}
    assert tiles and set(tiles.values()) == {1}


async def test_remembered_tiles_stay_within_their_room(streets: Any) -> None:
    scatter(streets, 50)
    cache = TileCache(streets.provider(), most_images=350)
    names = [TileName(8556 + k, 5556, 14) for k in range(4)]
    for name in names:
        await cache.get(name)
    # An empty tile takes the room of a hundred images, so only the last three fit.
    assert [name in cache for name in names] == [False, True, True, True]
    before = streets.asked["tiles"]
    await cache.get(names[3])
    assert streets.asked["tiles"] == before
    await cache.get(names[0])
    assert streets.asked["tiles"] == before + 1


async def test_a_tile_that_fails_is_asked_for_again(streets: Any) -> None:
    cache = TileCache(streets.provider(), 1000)
    streets.tile_fault = "outage"
    with pytest.raises(ServiceError):
        await cache.get(TileName(1, 1, 14))
    streets.tile_fault = None
    assert len(await cache.get(TileName(1, 1, 14))) == 0


@pytest.mark.parametrize("find", ["auto", "boxes"])
async def test_a_service_that_is_down_is_not_asked_for_quarters(
    streets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, find: Any
) -> None:
    """Its error of no known cause has the code of a crowded box."""
    monkeypatch.setattr(streets, "max_in_box", -1)
    said = streets.error
    monkeypatch.setattr(streets, "error", lambda status, code, _: said(status, code, "An unknown error occurred"))
    table = WorkerContext((streets.provider(),), Lake(tmp_path / "lake"), CollectSettings(find=find))
    with pytest.raises(ServiceError) as caught:
        await work({"id": "p", "lat": LAT, "lon": LON}, table)
    assert caught.value.kind == "outage" and caught.value.retryable and streets.asked["images"] == 2  # once again


async def test_a_record_without_a_sound_id_is_counted_and_spoils_no_other(streets: Any) -> None:
    streets.put("11", lat=LAT, lon=LON)
    streets.put("12", lat=LAT + 0.0005, lon=LON, extra={"id": 1.23e17})
    found = search(streets.client(), short_rows=0)
    assert [one.source_id for one in await drain(found)] == ["11"]
    assert found.odd["bad_id"] == 1 and found.seen["panorama"].pictures == 2


class Forgetful:
    """A service that leaves pictures out of what it answers to a box, some or all of them, each time others."""

    def __init__(self, mapillary: Mapillary, seed: int) -> None:
        self._mapillary, self._chance = mapillary, random.Random(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mapillary, name)

    async def images_in_box(self, *box: Any) -> list[dict[str, Any]]:
        rows = await self._mapillary.images_in_box(*box)
        return self._chance.sample(rows, self._chance.randint(0, len(rows)))


@pytest.mark.parametrize("seed", range(8))
async def test_few_pictures_or_none_are_checked_by_the_tiles(streets: Any, seed: int) -> None:
    scatter(streets, 6, seed=seed)
    whole = [one.source_id for one in await drain(search(streets.client(), short_rows=0))]
    found = search(Forgetful(streets.client(), seed), 500.0)  # type: ignore[arg-type]
    assert [one.source_id for one in await drain(found)] == whole


async def test_nothing_is_said_to_be_there_only_when_a_tile_says_so(streets: Any) -> None:
    found = search(streets.client())
    assert await found.next("panorama") is None and found.trouble is None
    assert streets.asked["tiles"] >= 1
    streets.tile_fault = "outage"
    unsure = search(streets.client())
    assert await unsure.next("panorama") is None
    assert unsure.trouble is not None and unsure.trouble.retryable


async def test_a_wide_box_of_many_tiles_is_asked_once_more(streets: Any) -> None:
    streets.put("11", lat=LAT, lon=LON)
    found = search(streets.client(), 5000.0)
    assert [one.source_id for one in await drain(found)] == ["11"]
    assert streets.asked["tiles"] == 0 and streets.asked["images"] == 4  # two strips, twice
