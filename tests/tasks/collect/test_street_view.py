"""Collect over a real socket: what is chosen, what is stored, and what every fault leads to."""

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from schemas.settings.collect import CollectSettings
from tasks.collect.candidates import find, ranked, read_candidate
from tasks.collect.street_view import Bench, work
from tasks.frame import Kept, Rejected
from tasks.lake import Lake
from tasks.services import ServiceError

PLACE = {"id": "place1", "lat": 50.0, "lon": 8.0}
NEAR, FAR = {"lat": 50.001, "lon": 8.0}, {"lat": 50.03, "lon": 8.0}  # 111 m and 3.3 km


def bench(streets: Any, path: Path, **settings: Any) -> Bench:
    wanted = {"photos": 0, "panorama_width": 1024, **settings}
    return Bench(streets.client(), Lake(path / "lake"), CollectSettings(**wanted))


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
    outcome = await work(PLACE, bench(streets, tmp_path))
    assert outcome.rows["images"][0]["source_id"] == "12"
    assert streets.asked["images"] == 4  # 500 m, 2 km, and 5 km in two strips


async def test_a_wish_that_is_fulfilled_is_not_searched_for_again(streets: Any, tmp_path: Path) -> None:
    streets.put("11", **NEAR)
    streets.put("12", **FAR)
    streets.put("13", **FAR, is_pano=False, width=1600, height=1200)
    outcome = await work(PLACE, bench(streets, tmp_path, photos=1))
    assert {row["source_id"] for row in outcome.rows["images"]} == {"11", "13"}
    assert streets.asked["images"] == 4


async def test_nothing_near_is_a_reject_with_evidence(streets: Any, tmp_path: Path) -> None:
    outcome = await work(PLACE, bench(streets, tmp_path))
    assert isinstance(outcome, Rejected)
    assert outcome.reason == "no_imagery_near"
    assert outcome.evidence == {"half_size_m": 5000.0, "seen": 0, "tried": 0}


async def test_an_expired_address_is_asked_for_again(streets: Any, tmp_path: Path) -> None:
    streets.put("11", **NEAR, fault="expired")
    outcome = await work(PLACE, bench(streets, tmp_path))
    assert isinstance(outcome, Kept)
    assert streets.asked["image 11"] == 1


async def test_a_broken_transfer_is_tried_again(streets: Any, tmp_path: Path) -> None:
    streets.put("11", **NEAR, fault="once_truncated")
    assert isinstance(await work(PLACE, bench(streets, tmp_path)), Kept)
    assert streets.asked["picture 11"] == 2


@pytest.mark.parametrize("fault", ["truncated", "html", "gone", "small"])
async def test_the_next_picture_is_taken_when_one_is_bad(streets: Any, tmp_path: Path, fault: str) -> None:
    streets.put("11", **NEAR, fault=fault)
    streets.put("12", **FAR)
    outcome = await work(PLACE, bench(streets, tmp_path))
    assert outcome.rows["images"][0]["source_id"] == "12"


@pytest.mark.parametrize(
    ("fault", "reason"), [("truncated", "corrupt_image"), ("html", "corrupt_image"), ("small", "no_usable_image")]
)
async def test_bad_pictures_only_are_a_reject(streets: Any, tmp_path: Path, fault: str, reason: str) -> None:
    streets.put("11", **NEAR, fault=fault)
    table = bench(streets, tmp_path)
    outcome = await work(PLACE, table)
    assert isinstance(outcome, Rejected)
    assert outcome.reason == reason
    assert outcome.evidence["problems"][0]["source_id"] == "11"
    assert not list(table.lake.images.root.rglob("*.*"))


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


async def test_only_so_many_pictures_are_tried(streets: Any, tmp_path: Path) -> None:
    for number in range(20):
        streets.put(str(100 + number), **NEAR, fault="small")
    outcome = await work(PLACE, bench(streets, tmp_path, tries=3))
    assert outcome.evidence["tried"] == 3
    assert outcome.evidence["seen"] == 20


async def test_a_crowded_box_is_split_until_all_are_found(streets: Any, tmp_path: Path) -> None:
    for number in range(40):
        streets.put(str(100 + number), lat=50.0 + (number - 20) * 1e-4, lon=8.0 + (number % 7 - 3) * 1e-4)
    streets.max_in_box = 10
    found = await find(streets.client(), 50.0, 8.0, 500, True)
    assert {one.source_id for one in found} == set(streets.shots)
    assert len(found) == 40  # a picture on a shared edge comes once


def candidate(shot_id: str, **row: Any) -> Any:
    point = {"type": "Point", "coordinates": [8.0, row.pop("lat", 50.001)]}
    return read_candidate({"id": shot_id, "geometry": point, **row}, 50.0, 8.0)


def test_the_order_of_trying() -> None:
    settings = CollectSettings()
    near = candidate("1", lat=50.001, is_pano=True)
    farther_better = candidate("2", lat=50.002, is_pano=True, quality_score=0.9)
    tiny = candidate("3", lat=50.0, is_pano=True, width=100, height=50)
    assert [one.source_id for one in ranked([near, farther_better, tiny], settings)] == ["2", "1"]
    sharp = candidate("4", lat=50.01, width=1600, height=1200)
    coarse = candidate("5", lat=50.0, width=800, height=600)
    assert [one.source_id for one in ranked([coarse, sharp], settings)] == ["4", "5"]


@pytest.mark.parametrize(
    "row",
    [
        {"geometry": None},
        {"geometry": {"coordinates": [8.0]}},
        {"geometry": {"coordinates": ["8", "50"]}},
        {"geometry": {"coordinates": [8.0, 95.0]}},
        {"geometry": {"coordinates": [float("nan"), 50.0]}},
        {},
    ],
)
def test_rows_without_a_place_are_passed_over(row: dict[str, Any]) -> None:
    assert read_candidate({"id": "1", **row}, 50.0, 8.0) is None


def test_strange_values_are_absent_values() -> None:
    odd = candidate("1", captured_at=1e30, creator="me", width="wide", height=3, quality_score="good", sequence=5)
    assert (odd.captured_at, odd.creator, odd.pixels, odd.quality, odd.sequence_id) == (None, None, None, 0.0, None)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"half_sizes_m": [500, 100]}, "grow"),
        ({"half_sizes_m": [0]}, "above 0"),
        ({"panoramas": 0, "photos": 0}, "nothing would be collected"),
        ({"panorama_width": 1001}, "even"),
        ({"panorama": 1}, "Extra inputs"),
    ],
)
def test_wrong_settings_are_explained(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        CollectSettings(**wrong)
