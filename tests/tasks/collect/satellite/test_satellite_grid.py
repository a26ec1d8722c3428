"""The picture's grid: its zone, its corners and the boxes that are searched."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.offline.scenes.projection import to_geographic, to_utm
from infra.offline.scenes.tiles import tiles_in
from tasks.geo.distance import distance_km
from tasks.services.sentinel.grid import grid_around, utm_epsg

LATS, LONS = st.floats(-79, 83), st.floats(-180, 180)


@pytest.mark.parametrize(
    ("lat", "lon", "epsg"),
    [
        (52.52, 13.4, 32633),
        (-33.45, -70.66, 32719),
        (0.0, 0.0, 32631),
        (-0.001, -0.001, 32730),
        (10.0, 180.0, 32601),  # 180 is where zone 1 begins
        (10.0, 179.999, 32660),
        (60.39, 5.32, 32632),  # Bergen: zone 32 reaches west to 3 degrees
        (55.9, 5.32, 32631),
        (78.22, 15.63, 32633),  # Longyearbyen
        (78.0, 8.9, 32631),
        (78.0, 9.1, 32633),
        (78.0, 41.9, 32637),
    ],
)
def test_zones(lat: float, lon: float, epsg: int) -> None:
    assert utm_epsg(lat, lon) == epsg


def test_the_zone_is_one_the_scenes_have() -> None:
    """Tiles of the real grid, south-western Norway included, lie in the zone that pictures take."""
    for lat, lon in ((60.3, 5.3), (62.0, 7.0), (58.9, 5.7), (41.9, 12.5), (-17.7, 178.0), (65.0, -18.0)):
        zones = {tile.zone for tile in tiles_in(lon, lat, lon, lat)}
        assert utm_epsg(lat, lon) % 100 in zones


@given(LATS, LONS, st.sampled_from([5.0, 10.0, 12.5, 20.0, 60.0]), st.sampled_from([64, 500, 2001]))
def test_the_grid_lies_on_multiples_and_the_place_in_its_middle(lat: float, lon: float, step: float, size: int) -> None:
    grid = grid_around(lat, lon, step, size)
    assert (grid.left_m / step) % 1 == 0 and (grid.top_m / step) % 1 == 0
    column, row = grid.pixels(np.array([lat]), np.array([lon]))
    # Half a pixel for the snap, and what a nanometre of rounding adds.
    assert abs(column[0] - size / 2) <= 0.5 + 1e-6 and abs(row[0] - size / 2) <= 0.5 + 1e-6


@given(LATS, LONS)
def test_corners_agree_with_another_projection(lat: float, lon: float) -> None:
    grid = grid_around(lat, lon, 10.0, 2000)
    side = 20_000.0
    x = grid.left_m + np.array([0.0, side, side, 0.0])
    y = grid.top_m - np.array([0.0, 0.0, side, side])
    expected = to_geographic(x, y, grid.epsg % 100, grid.epsg // 100 == 327)
    for (got_lat, got_lon), true_lat, true_lon in zip(grid.corners(), *expected, strict=True):
        assert distance_km(got_lat, got_lon, float(true_lat), (float(true_lon) + 180) % 360 - 180) < 1e-4


@given(LATS, LONS, st.floats(-2, 2), st.floats(-2, 2))
def test_a_shift_moves_the_middle(lat: float, lon: float, east: float, north: float) -> None:
    grid = grid_around(lat, lon, 10.0, 200, east, north)
    zone, south = utm_epsg(lat, lon) % 100, utm_epsg(lat, lon) // 100 == 327
    x, y = to_utm(np.array([lat]), np.array([lon]), zone, south)
    expected = to_geographic(x + east * 2000, y + north * 2000, zone, south)
    found = grid.centre()
    assert distance_km(found[0], found[1], float(expected[0][0]), float(expected[1][0])) < 0.012
    nudges = ((a, b) for a in (-1e-6, 1e-6) for b in (-1e-6, 1e-6))  # on the line between two zones either is right
    assert grid.epsg in {utm_epsg(float(expected[0][0]) + a, float(expected[1][0]) + b) for a, b in nudges}


@given(LATS, LONS)
def test_boxes_hold_the_picture_and_never_cross_the_date_line(lat: float, lon: float) -> None:
    grid = grid_around(lat, lon, 10.0, 2000)
    boxes = grid.boxes()
    for west, south, east, north in boxes:
        assert -180 <= west <= east <= 180 and -90 <= south <= north <= 90
    rng = np.random.default_rng(0)
    lats, lons = grid.degrees(rng.uniform(0, 2000, 40), rng.uniform(0, 2000, 40))
    slack = 1e-3  # an edge between two of its points bends outwards by less than this
    for one_lat, one_lon in zip(lats, lons, strict=True):
        assert any(w - slack <= one_lon <= e + slack and s - slack <= one_lat <= n + slack for w, s, e, n in boxes) or (
            abs(one_lon) > 180 - slack
        )
    assert len(boxes) == (2 if max(abs(a - b) for a in lons for b in lons) > 180 else len(boxes))
