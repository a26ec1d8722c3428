"""GCJ-02 against published pairs, and there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.geo.distance import distance_km
from tasks.geo.gcj02 import gcj02_to_wgs84, in_china, wgs84_to_gcj02

# (WGS 84, GCJ-02): the first three are the test vectors of eviltransform, which its ports in other languages share, the
# last is the example of coordtransform; both are other people's implementations.
PUBLISHED = [
    ((31.1774276, 121.5272106), (31.17530398364597, 121.531541859215)),  # Shanghai
    ((22.543847, 113.912316), (22.540796131694766, 113.9171764808363)),  # Shenzhen
    ((39.911954, 116.377817), (39.91334545536069, 116.38404722455657)),  # Beijing
    ((39.915, 116.404), (39.91640428150164, 116.41024449916938)),
]
ABROAD = {
    "Paris": (48.8584, 2.2945),
    "Seoul": (37.5665, 126.9780),
    "Hanoi": (21.0278, 105.8342),
    "Hong Kong": (22.3964, 114.1095),
    "Taipei": (25.0375, 121.5637),
    "Ulaanbaatar": (47.9184, 106.9177),
    "Singapore": (1.3521, 103.8198),
}


@pytest.mark.parametrize(("true", "shown"), PUBLISHED)
def test_published_pairs(true: tuple[float, float], shown: tuple[float, float]) -> None:
    assert distance_km(*wgs84_to_gcj02(*true), *shown) * 1000 < 0.05
    assert distance_km(*gcj02_to_wgs84(*shown), *true) * 1000 < 0.05
    assert 0.3 < distance_km(*true, *shown) < 0.8, "what is mended"


@pytest.mark.parametrize("name", ABROAD)
def test_abroad_nothing_is_shifted(name: str) -> None:
    assert not in_china(*ABROAD[name])
    assert wgs84_to_gcj02(*ABROAD[name]) == gcj02_to_wgs84(*ABROAD[name]) == ABROAD[name]


def test_the_coast_is_china_too() -> None:
    assert in_china(31.24, 121.49) and in_china(18.25, 109.5), "the Bund, and Sanya on Hainan"
    assert in_china(36.04, 120.32), "off the pier of Qingdao"
    assert not in_china(15.0, 112.0), "the open sea"


@given(st.floats(17.0, 54.0), st.floats(73.0, 136.0))
def test_there_and_back_within_a_metre(lat: float, lon: float) -> None:
    if in_china(lat, lon):
        assert distance_km(*gcj02_to_wgs84(*wgs84_to_gcj02(lat, lon)), lat, lon) * 1000 < 1
