"""Exchanged columns are found wherever they can be, and right ones are left alone everywhere."""

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tasks.geo.atlas import gazetteer
from tasks.ingest.positions import Positions, codes_of

TOWNS = gazetteer().filter(gazetteer()["population"] > 1000)
LAT, LON, COUNTRY = TOWNS["lat"].to_numpy(), TOWNS["lon"].to_numpy(), TOWNS["country"].to_numpy()
Floats = NDArray[np.float64]


def verdict(lat: Floats, lon: Floats, country: pl.Series | None = None) -> str | None:
    positions = Positions()
    named = pl.Series([None] * len(lat), dtype=pl.String) if country is None else country
    positions.observe(np.arange(2, len(lat) + 2), lat, lon, named)
    return positions.why_exchanged()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(20, 300))
def test_towns_of_the_world(seed: int, count: int) -> None:
    chosen = np.random.default_rng(seed).choice(len(LAT), count, replace=False)
    lat, lon = LAT[chosen], LON[chosen]
    assert verdict(lat, lon) is None
    assert "only when exchanged" in (verdict(lon, lat) or "")


def test_towns_of_one_country() -> None:
    rng = np.random.default_rng(1)
    proved = []
    for code in sorted(set(COUNTRY)):
        mine = np.flatnonzero(code == COUNTRY)
        if len(mine) < 10:
            continue
        mine = rng.permutation(mine)[:200]
        assert verdict(LAT[mine], LON[mine]) is None, f"{code} is right as it stands"
        if verdict(LON[mine], LAT[mine]):
            proved.append(code)
    assert {"US", "FR", "DE", "GB", "JP", "BR", "IN", "AU", "ZA", "CA", "AR", "CN", "KE"} <= set(proved)
    assert len(proved) > 140


def test_where_land_is_land_either_way_the_named_country_tells() -> None:
    mine = np.flatnonzero(COUNTRY == "TR")  # exchanged it lies in Turkey's south-east, Iraq and Saudi Arabia
    lat, lon = LAT[mine][:200], LON[mine][:200]
    named = pl.Series(["TR"] * len(lat))
    assert verdict(lat, lon, named) is None
    assert "in the country they name, only when exchanged" in (verdict(lon, lat, named) or "")


def test_a_few_bad_rows_are_no_exchanged_table() -> None:
    lat, lon = LAT[:200].copy(), LON[:200].copy()
    lat[:5], lon[:5] = 139.7, 35.7
    assert verdict(lat, lon) is None
    assert verdict(np.array([35.0, 36.0]), np.array([139.0, 140.0])) is None
    assert verdict(np.array([139.0, 140.0]), np.array([35.0, 36.0])) is None  # two rows prove nothing


def test_the_first_offender_is_named() -> None:
    said = verdict(np.full(10, 139.69), np.full(10, 35.68))
    assert said is not None and "10 of 10" in said and "row 2, lat 139.69, lon 35.68" in said


def test_countries_by_code_and_name() -> None:
    found = codes_of(pl.Series(["fr", "France", "Deutschland", "Atlantis", None, ""]))
    assert found.to_list() == ["FR", "FR", "DE", None, None, None]
