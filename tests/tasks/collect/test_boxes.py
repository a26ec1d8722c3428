"""Search boxes: they reach far enough, stay within the service's area, and leave no gap."""

from hypothesis import given
from hypothesis import strategies as st

from tasks.collect.boxes import METRES_PER_DEGREE, Box, boxes_around


def holds(boxes: list[Box], lat: float, lon: float) -> bool:
    slack = 1e-9
    return any(b.south - slack <= lat <= b.north + slack and b.west - slack <= lon <= b.east + slack for b in boxes)


@given(st.floats(-84, 84), st.floats(-180, 180), st.floats(10, 20_000), st.floats(-1, 1), st.floats(-1, 1))
def test_boxes_cover_and_fit(lat: float, lon: float, half_size_m: float, north: float, east: float) -> None:
    import math

    boxes = boxes_around(lat, lon, half_size_m, 0.01)
    assert all(box.area_sq_deg <= 0.01 for box in boxes)
    assert all(-180 <= box.west < box.east <= 180 and -90 <= box.south < box.north <= 90 for box in boxes)
    point_lat = lat + north * half_size_m / METRES_PER_DEGREE
    point_lon = lon + east * half_size_m / METRES_PER_DEGREE / math.cos(math.radians(lat))
    assert holds(boxes, point_lat, (point_lon + 180) % 360 - 180)


def test_the_180th_meridian_is_crossed() -> None:
    boxes = boxes_around(-17.0, 179.99, 5000, 0.01)
    assert holds(boxes, -17.0, 179.999) and holds(boxes, -17.0, -179.99)


def test_quarters_keep_the_area() -> None:
    box = Box(1, 2, 3, 5)
    assert sum(quarter.area_sq_deg for quarter in box.quarters()) == box.area_sq_deg


def test_an_ordinary_place_needs_one_request() -> None:
    assert len(boxes_around(48.85, 2.35, 2000, 0.01)) == 1
    assert len(boxes_around(0.0, 0.0, 5000, 0.01)) == 1
