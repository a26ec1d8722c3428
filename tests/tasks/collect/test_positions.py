"""Where pictures are: what lies elsewhere, or in two places at once, is never given to a place."""

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.settings.collect import CollectSettings
from tasks.collect.street_view import WorkerContext, work
from tasks.lake import Lake
from tasks.runtime.runner import Kept, Outcome, Rejected
from tasks.services import ServiceError

LAT, LON = 48.85, 2.35
WAYS = ("boxes", "auto", "tiles")


def point(lat: float, lon: float) -> dict[str, Any]:
    return {"type": "Point", "coordinates": [lon, lat]}


async def collected(streets: Any, tmp_path: Path, find: str, **settings: Any) -> Outcome:
    wanted = CollectSettings(find=find, photos=0, panorama_width=1024, half_sizes_m=(300,), **settings)
    return await work(
        {"id": "p", "lat": LAT, "lon": LON}, WorkerContext((streets.provider(),), Lake(tmp_path / "lake"), wanted)
    )


@pytest.mark.parametrize("find", WAYS)
async def test_a_corrected_position_on_another_continent_is_not_believed(
    streets: Any, tmp_path: Path, find: str
) -> None:
    streets.put("11", lat=LAT, lon=LON, extra={"geometry": point(LAT, LON), "computed_geometry": point(40.7, -73.9)})
    outcome = await collected(streets, tmp_path, find)
    assert isinstance(outcome, Rejected) and outcome.reason == "no_usable_image"
    assert outcome.evidence["panorama"]["unclear_position"] == 1
    streets.put("12", lat=LAT + 0.001, lon=LON)
    outcome = await collected(streets, tmp_path, find)
    assert isinstance(outcome, Kept) and [row["source_id"] for row in outcome.rows["images"]] == ["12"]


@pytest.mark.parametrize("find", WAYS)
async def test_a_corrected_position_of_null_island_leaves_the_cameras_own(
    streets: Any, tmp_path: Path, find: str
) -> None:
    streets.put("11", lat=LAT, lon=LON, extra={"geometry": point(LAT, LON), "computed_geometry": point(0.0, 0.0)})
    outcome = await collected(streets, tmp_path, find)
    assert isinstance(outcome, Kept)
    (row,) = outcome.rows["images"]
    assert (row["lat"], row["lon"]) == (LAT, LON) and json.loads(row["metadata_json"])["distance_m"] == 0.0


@pytest.mark.parametrize("find", WAYS)
async def test_how_far_a_correction_may_go_is_configuration(streets: Any, tmp_path: Path, find: str) -> None:
    moved = {"geometry": point(LAT, LON), "computed_geometry": point(LAT + 0.001, LON)}  # by 111 m
    streets.put("11", lat=LAT, lon=LON, extra=moved)
    outcome = await collected(streets, tmp_path, find)
    assert isinstance(outcome, Kept) and outcome.rows["images"][0]["lat"] == LAT + 0.001
    assert isinstance(await collected(streets, tmp_path, find, max_shift_m=100.0), Rejected)


@pytest.mark.parametrize("find", WAYS)
@pytest.mark.parametrize("field", ["geometry", "computed_geometry"])
async def test_pictures_from_elsewhere_are_passed_over_and_if_all_are_the_place_fails(
    streets: Any, tmp_path: Path, find: str, field: str
) -> None:
    swapped = {"computed_geometry": None, field: {"coordinates": [LAT, LON]}}  # latitude first
    streets.put("11", lat=LAT, lon=LON, extra=swapped)
    with pytest.raises(ServiceError, match="none of 1 pictures around a place has a position that can be read and"):
        await collected(streets, tmp_path, find)
    streets.put("12", lat=LAT + 0.002, lon=LON)
    outcome = await collected(streets, tmp_path, find, panoramas=2)
    assert isinstance(outcome, Kept) and [row["source_id"] for row in outcome.rows["images"]] == ["12"]
    (gap,) = outcome.rows["gaps"]
    assert json.loads(gap["evidence_json"])["elsewhere"] == 1
