"""Collect over a real socket: what is chosen, what is stored, and what every fault leads to."""

import asyncio
import dataclasses
import io
import json
import time
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pytest
from PIL import Image, ImageChops, ImageOps, ImageStat

from schemas.settings.collect import CollectSettings
from tasks.collect.candidates import candidate_of
from tasks.collect.download import FRESH_URLS, Picture, Unusable
from tasks.collect.providers.mapillary.streets import read_record
from tasks.collect.responses import VALID_S, StageResponses
from tasks.collect.street_view import NAME, STAGE, WorkerContext, work
from tasks.lake import Lake
from tasks.lake.withdrawn import Withdrawn
from tasks.runtime.runner import Kept, Rejected, run
from tasks.services import ServiceError
from tasks.services.response_store import ResponseStore

PLACE = {"id": "place1", "lat": 50.0, "lon": 8.0}
NEAR, FAR = {"lat": 50.001, "lon": 8.0}, {"lat": 50.03, "lon": 8.0}  # 111 m and 3.3 km


def bench(streets: Any, path: Path, **settings: Any) -> WorkerContext:
    wanted = {"photos": 0, "panorama_width": 1024, **settings}
    return WorkerContext((streets.provider(),), Lake(path / "lake"), CollectSettings(**wanted))


def recalling(streets: Any, path: Path, later_s: float = 0.0) -> WorkerContext:
    """Of another process on the same machine, some time later."""
    store = ResponseStore(path / "responses.sqlite", clock=lambda: time.time() + later_s)
    return dataclasses.replace(
        bench(streets, path), responses=StageResponses(store, NAME), _locks=WeakValueDictionary()
    )


async def test_a_place_gets_a_panorama_and_a_photo(streets: Any, tmp_path: Path) -> None:
    streets.put("11", **NEAR)
    streets.put("12", **FAR)
    streets.put("13", **NEAR, is_pano=False, width=1600, height=1200)
    table = bench(streets, tmp_path, photos=1)
    outcome = await work(PLACE, table)
    assert isinstance(outcome, Kept)
    panorama, photo = outcome.rows["images"]
    assert (panorama["kind"], panorama["source_id"]) == ("panorama", "11")
    assert (panorama["width"], panorama["height"]) == (1024, 512)
    assert (photo["kind"], photo["width"], photo["height"]) == ("photo", 1600, 1200)
    for row in (panorama, photo):
        assert row["licence"] == "CC BY-SA 4.0"
        assert "walker" in row["attribution"] and row["creator"] == "walker"
        assert row["request_url"] == f"{streets.url}/cdn/{row['source_id']}.jpg"  # no signature, no token
        assert row["place_id"] == "place1" and row["captured_at"].year == 2020
        data = table.lake.images.read(row["sha256"], row["extension"])
        assert b"SecretCamera" not in data
        assert Image.open(io.BytesIO(data)).size == (row["width"], row["height"])


async def test_the_same_place_gives_the_same_rows(streets: Any, tmp_path: Path) -> None:
    streets.put("11", **NEAR)
    table = bench(streets, tmp_path)
    rows = [(await work(PLACE, table)).rows["images"][0] for _ in range(2)]
    for row in rows:
        row.pop("fetched_at")
    assert rows[0] == rows[1]
    other = (await work({**PLACE, "id": "place2"}, table)).rows["images"][0]
    assert other["image_id"] != rows[0]["image_id"] and other["sha256"] == rows[0]["sha256"]


async def test_the_search_widens_until_something_is_there(streets: Any, tmp_path: Path) -> None:
    streets.put("12", **FAR)
    outcome = await work(PLACE, bench(streets, tmp_path, short_rows=0))
    assert outcome.rows["images"][0]["source_id"] == "12"
    assert streets.asked["images"] == 4  # 500 m, 2 km, and 5 km in two strips


async def test_a_wish_that_is_fulfilled_is_not_searched_for_again(streets: Any, tmp_path: Path) -> None:
    streets.put("11", **NEAR)
    streets.put("12", **FAR)
    streets.put("13", **FAR, is_pano=False, width=1600, height=1200)
    outcome = await work(PLACE, bench(streets, tmp_path, photos=1, short_rows=0))
    assert {row["source_id"] for row in outcome.rows["images"]} == {"11", "13"}
    assert streets.asked["images"] == 4


async def test_nothing_near_is_a_reject_with_evidence(streets: Any, tmp_path: Path) -> None:
    outcome = await work(PLACE, bench(streets, tmp_path))
    assert isinstance(outcome, Rejected)
    assert outcome.reason == "no_imagery_near"
    assert outcome.evidence == {
        "panorama": {
            "reason": "no_imagery_near",
            "half_sizes_m": [500.0, 2000.0, 5000.0],
            "tried": 0,
            "seen": {"panoramas": 0, "photos": 0},
            "nearest_m": None,
        }
    }
    assert [gap["reason"] for gap in outcome.rows["gaps"]] == ["no_imagery_near"]


async def test_an_expired_address_is_asked_for_again(streets: Any, tmp_path: Path) -> None:
    streets.put("11", **NEAR, fault="expired")
    outcome = await work(PLACE, bench(streets, tmp_path))
    assert isinstance(outcome, Kept)
    assert streets.asked["image 11"] == 1


async def test_many_new_addresses_are_asked_for_at_once(streets: Any, tmp_path: Path) -> None:
    for number in range(12):
        streets.put(str(100 + number), lat=50.0 + number, lon=8.0)
    table = bench(streets, tmp_path)
    candidates = [
        candidate_of(read_record({**streets.row(name, shot), "thumb_original_url": None}), shot.lat, shot.lon)
        for name, shot in streets.shots.items()
    ]
    streets.shots["103"].fault = "deleted"  # one unknown id spoils a whole list
    ends = await asyncio.gather(*(table.downloads.get(one) for one in candidates if one), return_exceptions=True)
    assert [one.sha256[:0] if isinstance(one, Picture) else one.kind for one in ends] == [""] * 3 + ["not_found"] + [
        ""
    ] * 8
    assert streets.asked["many"] == 2
    assert all(streets.asked[f"picture {name}"] == (name != "103") for name in streets.shots)


async def test_a_picture_whose_every_address_says_gone_makes_room_for_the_next(streets: Any, tmp_path: Path) -> None:
    streets.put("11", **NEAR, fault="410")
    streets.put("12", **FAR)
    outcome = await work(PLACE, bench(streets, tmp_path, short_rows=0))
    assert outcome.rows["images"][0]["source_id"] == "12"
    assert streets.asked["picture 11"] == 1 + FRESH_URLS


async def test_a_broken_transfer_is_tried_again(streets: Any, tmp_path: Path) -> None:
    streets.put("11", **NEAR, fault="once_truncated")
    assert isinstance(await work(PLACE, bench(streets, tmp_path)), Kept)
    assert streets.asked["picture 11"] == 2


@pytest.mark.parametrize("fault", ["truncated", "html", "gone", "small"])
async def test_the_next_picture_is_taken_when_one_is_bad(streets: Any, tmp_path: Path, fault: str) -> None:
    streets.put("11", **NEAR, fault=fault)
    streets.put("12", **FAR)
    outcome = await work(PLACE, bench(streets, tmp_path, short_rows=0))
    assert outcome.rows["images"][0]["source_id"] == "12"


@pytest.mark.parametrize(
    ("fault", "reason"), [("truncated", "corrupt_image"), ("html", "corrupt_image"), ("small", "no_usable_image")]
)
async def test_bad_pictures_only_are_a_reject(streets: Any, tmp_path: Path, fault: str, reason: str) -> None:
    streets.put("11", **NEAR, fault=fault)
    table = bench(streets, tmp_path)
    table.downloads.hosts.answered(streets.url)  # with pictures of other places
    outcome = await work(PLACE, table)
    assert isinstance(outcome, Rejected)
    assert outcome.reason == reason
    assert outcome.evidence["panorama"]["examples"][0]["source_id"] == "11"
    assert sum(outcome.evidence["panorama"]["problems"].values()) == 1
    assert not list((table.lake.root / "images").rglob("*.*"))


@pytest.mark.parametrize("fault", ["gone", "html", "truncated"])
async def test_a_host_that_gives_no_picture_at_all_is_a_failure_and_no_reject(
    streets: Any, tmp_path: Path, fault: str
) -> None:
    for shot_id in ("11", "12", "13"):
        streets.put(shot_id, **NEAR, fault=fault)
    table = bench(streets, tmp_path)
    with pytest.raises(ServiceError) as caught:
        await work(PLACE, table)
    assert caught.value.retryable and "no picture has come from this host so far" in str(caught.value)
    streets.shots["13"].fault = None
    assert isinstance(await work(PLACE, table), Kept)


async def test_a_picture_that_several_places_choose_comes_once(streets: Any, tmp_path: Path) -> None:
    streets.put("11", **NEAR)
    table = recalling(streets, tmp_path)
    places = [{**PLACE, "id": f"p{number}"} for number in range(5)]
    rows = [outcome.rows["images"][0] for outcome in await asyncio.gather(*(work(one, table) for one in places))]
    assert streets.asked["picture 11"] == 1
    assert len({row["image_id"] for row in rows}) == 5 and len({row["sha256"] for row in rows}) == 1


async def test_a_picture_that_another_process_has_fetched_comes_once(streets: Any, tmp_path: Path) -> None:
    streets.put("11", **NEAR)
    found = [await work({**PLACE, "id": f"p{n}"}, recalling(streets, tmp_path)) for n in range(3)]
    rows = [outcome.rows["images"][0] for outcome in found]
    assert streets.asked["picture 11"] == 1
    assert len({row["image_id"] for row in rows}) == 3 and len({row["fetched_at"] for row in rows}) == 1
    await work({**PLACE, "id": "p9"}, recalling(streets, tmp_path, later_s=VALID_S + 1))
    assert streets.asked["picture 11"] == 2


async def test_processes_that_fetch_one_picture_at_once_write_single_rows(streets: Any, tmp_path: Path) -> None:
    """Each may ask for it; each place has one row nevertheless, and the bytes are stored once."""
    streets.put("11", **NEAR)
    workers = [recalling(streets, tmp_path) for _ in range(3)]
    found = await asyncio.gather(*(work({**PLACE, "id": f"p{n}"}, one) for n, one in enumerate(workers)))
    rows = [row for outcome in found for row in outcome.rows["images"]]
    assert 1 <= streets.asked["picture 11"] <= 3
    assert len(rows) == len({row["image_id"] for row in rows}) == 3 and len({row["sha256"] for row in rows}) == 1
    assert len(list((workers[0].lake.root / "images").rglob("*.jpg"))) == 1


async def test_a_withdrawn_picture_makes_room_for_the_next(streets: Any, tmp_path: Path) -> None:
    streets.put("11", **NEAR)
    streets.put("12", **FAR)
    table = bench(streets, tmp_path)
    first = (await work(PLACE, table)).rows["images"][0]
    rules = Withdrawn(sources=frozenset({("mapillary", "11")}))
    chosen = await work(PLACE, dataclasses.replace(bench(streets, tmp_path), withdrawn=rules))
    assert first["source_id"] == "11" and [row["source_id"] for row in chosen.rows["images"]] == ["12"]
    assert streets.asked["picture 11"] == 1, "it is not even fetched"
    everything = Withdrawn(creators=frozenset({"walker"}))
    outcome = await work(PLACE, dataclasses.replace(bench(streets, tmp_path), withdrawn=everything))
    assert isinstance(outcome, Rejected)


async def test_an_outage_is_a_failure_to_retry_not_a_reject(streets: Any, tmp_path: Path) -> None:
    streets.put("11", **NEAR, fault="outage")
    table = bench(streets, tmp_path)
    with pytest.raises(ServiceError) as caught:
        await work(PLACE, table)
    assert caught.value.retryable
    streets.outage = True
    with pytest.raises(ServiceError) as caught:
        await work(PLACE, table)
    assert caught.value.kind == "outage"


@pytest.mark.parametrize(("fault", "fetches"), [("forbidden", 1 + FRESH_URLS), ("elsewhere", 1)])
async def test_a_host_that_refuses_everything_is_in_trouble(
    streets: Any, tmp_path: Path, fault: str, fetches: int
) -> None:
    """Whether it failed before or not: a wall around the host must not reject every place for good."""
    for number in range(3):
        streets.put(str(11 + number), **NEAR, fault=fault)
    table = bench(streets, tmp_path)
    with pytest.raises(ServiceError) as caught:
        await work(PLACE, table)
    assert sum(streets.asked[f"picture {11 + number}"] for number in range(3)) == fetches
    with pytest.raises(ServiceError) as again:
        await work({**PLACE, "refused": True}, table)
    assert caught.value.kind == again.value.kind and again.value.kind in ("expired", "blocked")
    if fault == "elsewhere":
        assert caught.value.status == 302 and "portal.example" in caught.value.message
        assert "sign-in?from" not in caught.value.message


@pytest.mark.parametrize("fault", ["forbidden", "elsewhere"])
async def test_one_picture_that_is_refused_makes_room_for_the_next_in_the_second_run(
    streets: Any, tmp_path: Path, fault: str
) -> None:
    streets.put("11", **NEAR, fault=fault)
    streets.put("12", **FAR)
    table = bench(streets, tmp_path, panoramas=2)
    with pytest.raises(ServiceError):
        await work(PLACE, table)
    assert streets.asked["picture 12"] == 0, "it may be the weather"
    outcome = await work({**PLACE, "refused": True}, table)
    assert [row["source_id"] for row in outcome.rows["images"]] == ["12"]
    (gap,) = outcome.rows["gaps"]
    assert json.loads(gap["evidence_json"])["problems"] == {"forbidden": 1}


async def test_an_odd_id_in_a_list_of_addresses_spoils_none_of_the_others(streets: Any, tmp_path: Path) -> None:
    table = bench(streets, tmp_path)
    streets.put("31", **NEAR)
    streets.put("32", **FAR)
    rows = [{**streets.row(name, shot), "thumb_original_url": None} for name, shot in streets.shots.items()]
    candidates = [candidate_of(read_record(row), 50.0, 8.0) for row in [*rows, {**rows[0], "id": "33x"}]]
    ends = await asyncio.gather(*(table.downloads.get(one) for one in candidates if one), return_exceptions=True)
    assert [end.kind if isinstance(end, Unusable) else type(end) for end in ends] == [Picture, Picture, "rejected"]


async def test_only_so_many_pictures_are_tried(streets: Any, tmp_path: Path) -> None:
    for number in range(20):
        streets.put(str(100 + number), **NEAR, fault="small")
    outcome = await work(PLACE, bench(streets, tmp_path, tries=3))
    assert outcome.evidence["panorama"]["tried"] == 3
    assert outcome.evidence["panorama"]["seen"] == {"panoramas": 20, "photos": 0}
    assert outcome.evidence["panorama"]["problems"] == {"too_small": 3}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"half_sizes_m": [500, 100]}, "grow"),
        ({"half_sizes_m": [0]}, "above 0"),
        ({"panoramas": 0, "photos": 0, "satellite": {"enabled": False}}, "nothing to collect"),
        ({"panorama_width": 1001}, "multiple of 2"),
        ({"panorama": 1}, "Extra inputs"),
    ],
)
def test_wrong_settings_are_explained(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        CollectSettings(**wrong)


async def test_what_a_place_lacks_stands_beside_what_it_has(streets: Any, tmp_path: Path) -> None:
    streets.put("11", **NEAR)
    streets.put("12", **NEAR, is_pano=False, width=400, height=300)  # too small, as its row says
    streets.put("13", **FAR, is_pano=False, width=1600, height=1200, fault="html")
    outcome = await work(PLACE, bench(streets, tmp_path, panoramas=2, photos=1))
    assert isinstance(outcome, Kept)
    panorama, photo = outcome.rows["gaps"]
    assert (panorama["kind"], panorama["wanted"], panorama["got"]) == ("panorama", 2, 1)
    assert panorama["reason"] == "too_few_near"
    assert (photo["kind"], photo["got"], photo["reason"]) == ("photo", 0, "corrupt_image")
    evidence = json.loads(photo["evidence_json"])
    assert evidence["half_sizes_m"] == [500, 2000, 5000] and evidence["seen"] == {"panoramas": 1, "photos": 2}
    assert evidence["nearest_m"] == pytest.approx(111.2, abs=0.1)
    assert (evidence["too_small"], evidence["tried"], evidence["problems"]) == (1, 1, {"not_an_image": 1})


@pytest.mark.parametrize(
    ("shots", "reason"),
    [
        ([], "no_imagery_near"),
        ([{"is_pano": False}], "no_panorama_near"),
        ([{"width": 400, "height": 200}], "no_usable_image"),
        ([{"fault": "small"}, {"fault": "html"}], "no_usable_image"),
        ([{"fault": "truncated"}, {"fault": "html"}], "corrupt_image"),
        ([{"extra": {"camera_type": "perspective"}}], "no_usable_image"),
    ],
)
async def test_every_reason_for_nothing(streets: Any, tmp_path: Path, shots: list[Any], reason: str) -> None:
    for number, shot in enumerate(shots):
        streets.put(str(11 + number), **NEAR, **shot)
    table = bench(streets, tmp_path)
    table.downloads.hosts.answered(streets.url)  # with pictures of other places
    outcome = await work(PLACE, table)
    assert isinstance(outcome, Rejected) and outcome.reason == reason
    assert [(gap["kind"], gap["reason"]) for gap in outcome.rows["gaps"]] == [("panorama", reason)]


async def test_several_panoramas_come_from_several_sequences(streets: Any, tmp_path: Path) -> None:
    for number in range(4):  # one drive, ten metres apart
        streets.put(str(11 + number), lat=50.0 + number * 9e-5, lon=8.0, extra={"sequence": "drive"})
    streets.put("21", lat=50.002, lon=8.0, extra={"sequence": "walk"})
    outcome = await work(PLACE, bench(streets, tmp_path, panoramas=3))
    assert [row["source_id"] for row in outcome.rows["images"]] == ["11", "21", "14"]  # 30 m on


async def test_the_heading_is_recorded_and_left_stays_left(streets: Any, tmp_path: Path) -> None:
    # The fixture's picture is eight columns of random colours, stretched: a mirrored or rolled one would differ.
    streets.put("11", **NEAR, extra={"computed_compass_angle": -90.5, "camera_type": "spherical"})
    table = bench(streets, tmp_path)
    (row,) = (await work(PLACE, table)).rows["images"]
    assert row["compass_angle"] == 269.5 and json.loads(row["metadata_json"])["camera_type"] == "spherical"
    came = Image.open(io.BytesIO(streets.original("11"))).convert("RGB").resize((64, 32))
    kept = Image.open(io.BytesIO(table.lake.images.read(row["sha256"], "jpg"))).convert("RGB").resize((64, 32))

    def apart(one: Image.Image, other: Image.Image) -> float:
        return sum(ImageStat.Stat(ImageChops.difference(one, other)).mean) / 3

    assert apart(came, kept) < 4
    assert apart(ImageOps.mirror(came), kept) > 20
    assert apart(ImageChops.offset(came, 32, 0), kept) > 20
    # The seam: the first and the last column are neighbours, and stay where they were.
    for column in (0, 63):
        strip = (column, 0, column + 1, 32)
        assert apart(came.crop(strip), kept.crop(strip)) < 6


def test_gaps_are_written_with_the_pictures_and_end_with_their_wish(
    earth: Any, in_process: None, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    earth.plan(lake, 5, empty=1)
    settings = {"panorama_width": 512, "panorama_min_pixels": 1, "half_sizes_m": (500,)}
    result = run(STAGE, CollectSettings(**settings), earth.context(lake))
    assert (result.kept, result.rejected, result.failed) == (5, 1, 0)
    images, gaps = lake.read("images"), lake.read("gaps")
    had = set(images.select("place_id", "kind").iter_rows())
    lacked = set(gaps.select("place_id", "kind").iter_rows())
    assert not had & lacked
    assert had | lacked == {
        (place, kind) for place in lake.read("places")["place_id"] for kind in ("panorama", "photo")
    }
    assert {("ocean0", "panorama"), ("ocean0", "photo")} <= lacked and len(lacked) > 2
    again = run(STAGE, CollectSettings(**settings), earth.context(lake))
    assert again.items_in == 0
    run(STAGE, CollectSettings(**settings, photos=0), earth.context(lake))
    assert set(lake.read("gaps")["kind"]) == {"panorama"}
