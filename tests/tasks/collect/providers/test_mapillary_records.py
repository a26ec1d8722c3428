"""What a row of Mapillary is read as."""

from typing import Any

import pytest

from tasks.collect.candidates import Candidate, candidate_of
from tasks.collect.providers.mapillary.streets import kind_of, read_record


def candidate(**row: Any) -> Candidate:
    found = candidate_of(
        read_record({"id": "1", "geometry": {"type": "Point", "coordinates": [8.0, 50.001]}, **row}), 50.0, 8.0
    )
    assert found is not None
    return found


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
    assert candidate_of(read_record({"id": "1", **row}), 50.0, 8.0) is None


def test_strange_values_are_absent_values() -> None:
    odd = candidate(captured_at=1e30, creator="me", width="wide", height=3, quality_score="good", sequence=5)
    assert (odd.captured_at, odd.creator, odd.pixels, odd.quality, odd.sequence_id) == (None, None, None, 0.0, None)
    assert candidate(camera_type=7, compass_angle="north").camera_type is None
    huge = candidate(
        camera_type=["spherical"], **dict.fromkeys(("captured_at", "quality_score", "compass_angle"), 10**400)
    )
    assert (huge.camera_type, huge.captured_at, huge.quality, huge.compass_angle) == (None, None, 0.0, None)
    assert huge.kind is None and candidate(camera_type={}, is_pano=True).kind == "panorama"
    assert candidate_of(read_record({"id": "1", "geometry": {"coordinates": [10**400, 1]}}), 50.0, 8.0) is None


def test_the_corrected_position_counts_and_the_other_is_what_was_searched_by() -> None:
    both = candidate(computed_geometry={"type": "Point", "coordinates": [8.0, 50.002]})
    assert (both.lat, both.lon) == (50.002, 8.0) and both.found_at == (50.001, 8.0)
    assert both.distance_m == pytest.approx(222.39, abs=0.01)
    only = candidate_of(read_record({"id": "1", "computed_geometry": {"coordinates": [8.0, 50.002]}}), 50.0, 8.0)
    assert only is not None and only.found_at == (50.002, 8.0)


@pytest.mark.parametrize(
    ("row", "angle"),
    [
        ({"computed_compass_angle": 12.5, "compass_angle": 90.0}, 12.5),
        ({"computed_compass_angle": 0.0, "compass_angle": 90.0}, 0.0),
        ({"computed_compass_angle": None, "compass_angle": 90}, 90.0),
        ({"compass_angle": -90.0}, 270.0),
        ({"compass_angle": 360.0}, 0.0),
        ({"compass_angle": 725.0}, 5.0),
        ({"compass_angle": -1e-20}, 0.0),
        ({"compass_angle": float("nan")}, None),
        ({"compass_angle": True}, None),
        ({}, None),
    ],
)
def test_the_heading_is_the_corrected_one_within_the_circle(row: dict[str, Any], angle: float | None) -> None:
    assert candidate(**row).compass_angle == angle


@pytest.mark.parametrize(
    ("is_pano", "camera", "kind"),
    [
        (True, "spherical", "panorama"),
        (True, "equirectangular", "panorama"),
        (True, None, "panorama"),
        (None, "spherical", "panorama"),
        (False, "perspective", "photo"),
        (False, "fisheye", "photo"),
        (False, None, "photo"),
        (None, None, None),
        (1, None, None),
        (1, "spherical", "panorama"),
        (0, "perspective", "photo"),
        (None, "camera of tomorrow", None),
        (True, "perspective", None),
        (True, "fisheye", None),
        (False, "spherical", None),
        (False, "equirectangular", None),
        ("true", None, None),
        (True, "camera of tomorrow", "panorama"),
    ],
)
def test_a_panorama_is_what_nothing_contradicts(is_pano: Any, camera: Any, kind: str | None) -> None:
    assert kind_of(is_pano, camera) == kind
    assert candidate(is_pano=is_pano, camera_type=camera).kind == kind


def test_two_positions_that_contradict_each_other_are_told_apart() -> None:
    both = candidate(computed_geometry={"coordinates": [-73.9, 40.7]})
    assert both.found_at == (50.001, 8.0) and both.shift_m > 6_000_000
    assert candidate(computed_geometry={"coordinates": [8.0, 50.002]}).shift_m == pytest.approx(111.19, abs=0.01)
    assert candidate().shift_m == 0.0


def test_null_island_is_no_position() -> None:
    """It is how a position that is not known is written."""
    unknown = candidate(computed_geometry={"coordinates": [0.0, 0.0]})
    assert (unknown.lat, unknown.lon, unknown.shift_m) == (50.001, 8.0, 0.0)
    assert candidate_of(read_record({"id": "1", "geometry": {"coordinates": [0, 0]}}), 0.0, 0.0) is None
    on_the_equator = candidate_of(read_record({"id": "1", "geometry": {"coordinates": [9.4, 0.0]}}), 0.0, 9.4)
    assert on_the_equator is not None and on_the_equator.lat == 0.0
