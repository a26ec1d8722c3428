import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.geo.distance import EARTH_RADIUS_KM, cell_of, distance_km, is_point

LAT = st.floats(-90, 90)
LON = st.floats(-180, 180)


def test_known_distances() -> None:
    # GeoVista fig. 5, Larco Museum against its label in Lima. The figure prints 5.63 km, its own eq. 1 gives this:
    assert distance_km(-12.04803, -77.02632, -12.072497, -77.070861) == pytest.approx(5.555, abs=0.001)
    assert distance_km(0, 0, 0, 1) == pytest.approx(math.pi * 6371 / 180, rel=1e-12)
    assert distance_km(90, 0, -90, 0) == pytest.approx(math.pi * 6371, rel=1e-12)
    assert distance_km(0, 179.5, 0, -179.5) == pytest.approx(math.pi * 6371 / 180, rel=1e-9)


def test_small_distances_keep_their_digits() -> None:
    metre_in_degrees = 0.001 / (math.pi * EARTH_RADIUS_KM / 180)
    assert distance_km(60, 25, 60 + metre_in_degrees, 25) == pytest.approx(0.001, rel=1e-6)


@given(LAT, LON, LAT, LON)
def test_is_a_metric_and_agrees_with_the_law_of_cosines(lat1: float, lon1: float, lat2: float, lon2: float) -> None:
    d = distance_km(lat1, lon1, lat2, lon2)
    assert 0 <= d <= math.pi * EARTH_RADIUS_KM + 1e-6
    assert d == pytest.approx(distance_km(lat2, lon2, lat1, lon1), abs=1e-9)
    assert distance_km(lat1, lon1, lat1, lon1) == 0
    p, g, across = math.radians(lat1), math.radians(lat2), math.radians(lon1 - lon2)
    cosine = math.sin(p) * math.sin(g) + math.cos(p) * math.cos(g) * math.cos(across)
    assert d == pytest.approx(EARTH_RADIUS_KM * math.acos(max(-1.0, min(1.0, cosine))), abs=0.5)  # SpotAgent eq. 11


@given(LAT, LON)
def test_antipodes_are_half_the_circumference(lat: float, lon: float) -> None:
    far = distance_km(lat, lon, -lat, lon - 180 if lon > 0 else lon + 180)
    assert far == pytest.approx(math.pi * EARTH_RADIUS_KM, abs=1e-3)


def test_scalars_and_arrays_agree() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.uniform(-90, 90, (2, 500))
    c, d = rng.uniform(-180, 180, (2, 500))
    many = distance_km(a, c, b, d)
    one_by_one = [distance_km(*map(float, row)) for row in zip(a, c, b, d, strict=True)]
    np.testing.assert_allclose(many, one_by_one, rtol=1e-12)
    assert distance_km(a[:, None], c[:, None], b[None, :5], d[None, :5]).shape == (500, 5)
    assert isinstance(distance_km(np.float64(1.0), 2, 3, 4), float)


def test_long_columns_computed_in_pieces_are_the_same() -> None:
    rng = np.random.default_rng(2)
    lat1, lat2 = rng.uniform(-90, 90, (2, 300_001))
    lon1, lon2 = rng.uniform(-180, 180, (2, 300_001))
    lat1[7] = np.nan
    some = slice(None, None, 1000)
    whole = distance_km(lat1, lon1, lat2, lon2)
    np.testing.assert_array_equal(whole[some], distance_km(lat1[some], lon1[some], lat2[some], lon2[some]))
    assert np.flatnonzero(np.isnan(whole)).tolist() == [7]
    assert whole[-1] == distance_km(lat1[-1:], lon1[-1:], lat2[-1:], lon2[-1:])[0]


def test_nan_stays_nan() -> None:
    assert math.isnan(distance_km(math.nan, 0, 0, 0))
    assert math.isnan(distance_km(math.inf, 0, 0, 0))
    assert np.isnan(distance_km(np.array([np.nan, 1.0]), 0, 0, 0)).tolist() == [True, False]


@pytest.mark.parametrize(
    ("lat", "lon", "cell"),
    [
        (48.8566, 2.3522, "N48E002"),
        (-33.9, 18.4, "S34E018"),
        (-0.5, -0.5, "S01W001"),
        (0.0, 0.0, "N00E000"),
        (-0.0, -0.0, "N00E000"),
        (90, 180, "N89E179"),
        (-90, -180, "S90W180"),
        (40.7, -74.0, "N40W074"),
    ],
)
def test_cells(lat: float, lon: float, cell: str) -> None:
    assert cell_of(lat, lon) == cell


@given(LAT, LON)
def test_a_point_lies_in_its_cell(lat: float, lon: float) -> None:
    cell = cell_of(lat, lon)
    south, west = int(cell[1:3]) * (1 if cell[0] == "N" else -1), int(cell[4:]) * (1 if cell[3] == "E" else -1)
    assert south <= lat <= south + 1
    assert west <= lon <= west + 1
    assert cell_of(south, west) == cell


@pytest.mark.parametrize(("lat", "lon"), [(90.1, 0), (0, -180.1), (math.nan, 0), (0, math.inf)])
def test_no_cell_off_the_earth(lat: float, lon: float) -> None:
    assert not is_point(lat, lon)
    with pytest.raises(ValueError, match="no cell"):
        cell_of(lat, lon)
