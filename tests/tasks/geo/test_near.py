"""Pairs of points within a radius, against measuring every pair."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.geo.distance import distance_km
from tasks.geo.near import pairs_within


def every_pair(
    lat: np.ndarray, lon: np.ndarray, lat2: np.ndarray, lon2: np.ndarray, km: float
) -> list[tuple[int, int]]:
    near = distance_km(lat[:, None], lon[:, None], lat2[None, :], lon2[None, :]) <= km
    return list(zip(*(side.tolist() for side in np.nonzero(near)), strict=True))


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0.05, 1.0, 50.0, 900.0, 9000.0]),
    st.sampled_from(["sphere", "pole", "line"]),
)
def test_pairs_are_those_of_the_brute_force(seed: int, km: float, where: str) -> None:
    random = np.random.default_rng(seed)
    sizes = int(random.integers(1, 60)), int(random.integers(1, 60))
    if where == "pole":
        sets = [(90 - np.abs(random.normal(0, 2, n)), random.uniform(-180, 180, n)) for n in sizes]
    elif where == "line":  # where longitudes wrap
        sets = [(random.normal(0, 0.02, n), (180 + random.normal(0, 0.02, n) + 180) % 360 - 180) for n in sizes]
    else:
        sets = [(np.degrees(np.arcsin(random.uniform(-1, 1, n))), random.uniform(-180, 180, n)) for n in sizes]
    (lat, lon), (lat2, lon2) = sets
    one, two = pairs_within(lat, lon, lat2, lon2, km)
    assert list(zip(one.tolist(), two.tolist(), strict=True)) == every_pair(lat, lon, lat2, lon2, km)


def test_edges() -> None:
    assert [len(side) for side in pairs_within([], [], [1.0], [1.0], 1)] == [0, 0]
    one, two = pairs_within([10.0, -90.0, 0.0], [180.0, 0.0, 0.0], [10.0, -90.0], [-180.0, 170.0], 0.001)
    assert one.tolist() == [0, 1] and two.tolist() == [0, 1]
    one, two = pairs_within([0.0], [0.0], [0.0], [0.0], 0)
    assert one.tolist() == pytest.approx([0])
