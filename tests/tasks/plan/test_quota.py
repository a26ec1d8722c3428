"""Quotas against eq. 11 computed apart, with exact fractions."""

from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import GeofixError, InputError
from schemas.settings.plan import PlanSettings, QuotaWeights
from tasks.geo.atlas import countries
from tasks.plan.quota import country_quotas, shares, whole_quotas


def world(rows: int, random: np.random.Generator) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "iso2": [f"{chr(65 + i // 26)}{chr(65 + i % 26)}" for i in range(rows)],
            "road_km": random.lognormal(8, 3, rows) * (random.random(rows) > 0.2),
            "population": random.lognormal(12, 3, rows) * (random.random(rows) > 0.1),
            "land_km2": random.lognormal(9, 3, rows),
        }
    )


def exact_quotas(table: pl.DataFrame, places: int, weights: tuple[Fraction, ...]) -> dict[str, int]:
    columns = [[Fraction(str(v)) for v in table[name]] for name in ("road_km", "population", "land_km2")]
    used = [(w, c, sum(c)) for w, c in zip(weights, columns, strict=True) if sum(c) > 0]
    scale = sum(w for w, _, _ in used)
    exact = [places * sum(w * c[i] / total for w, c, total in used) / scale for i in range(table.height)]
    quotas = [int(e) for e in exact]
    order = sorted(range(table.height), key=lambda i: (-(exact[i] - quotas[i]), i))
    for i in order[: places - sum(quotas)]:
        quotas[i] += 1
    return dict(zip(table["iso2"], quotas, strict=True))


def test_quotas_sum_to_m_in_ten_thousand_small_worlds() -> None:
    random = np.random.default_rng(11)
    weights = QuotaWeights()
    for _ in range(10_000):
        rows, places = int(random.integers(1, 30)), int(random.integers(1, 5000))
        factors = random.lognormal(8, 4, (3, rows)) * (random.random((3, rows)) > 0.2)
        factors[2] += 1e-9
        parts = shares(*factors, weights)
        quotas = whole_quotas(parts, places)
        assert quotas.sum() == places
        assert (np.abs(quotas - parts * places) < 1 + 1e-6).all()


@pytest.mark.parametrize("places", [1, 160, 3000, 20_000, 1_000_000])
def test_real_quotas_equal_equation_11_to_the_unit(places: int) -> None:
    table = countries().filter(pl.col("iso2") != "AQ")
    expected = exact_quotas(table, places, (Fraction(1, 2), Fraction(1, 5), Fraction(3, 10)))
    assert country_quotas(countries(), PlanSettings(places=places)) == expected
    assert sum(expected.values()) == places


def test_small_world_quotas_equal_exact_fractions() -> None:
    random = np.random.default_rng(3)
    for _ in range(200):
        table = world(int(random.integers(1, 40)), random)
        settings = PlanSettings(places=int(random.integers(1, 3000)), exclude=())
        expected = exact_quotas(table, settings.places, (Fraction(1, 2), Fraction(1, 5), Fraction(3, 10)))
        assert country_quotas(table, settings) == expected


@given(st.lists(st.floats(0, 1e12, allow_subnormal=False), min_size=1, max_size=40), st.integers(1, 10**7))
def test_whole_quotas_always_sum(parts: list[float], places: int) -> None:
    if sum(parts) < 1e-3:
        parts[0] += 1.0
    quotas = whole_quotas(parts, places)
    assert quotas.sum() == places and (quotas >= 0).all()


def test_ties_go_to_the_first_in_order() -> None:
    assert whole_quotas([1, 1, 1], 4).tolist() == [2, 1, 1]


def test_geoseek_presets_reach_over_150_countries() -> None:
    quotas = country_quotas(countries(), PlanSettings(preset="geoseek-loc"))
    assert sum(quotas.values()) == 20_000 and sum(q > 0 for q in quotas.values()) > 150
    assert sum(country_quotas(countries(), PlanSettings(preset="geoseek-val")).values()) == 3_000


def test_unknown_countries_are_named() -> None:
    with pytest.raises(InputError, match=r"plan\.countries: given QQ, XY;"):
        country_quotas(countries(), PlanSettings(countries=("FR", "XY", "QQ")))
    with pytest.raises(InputError, match=r"plan\.exclude: given XY;"):
        country_quotas(countries(), PlanSettings(exclude=("FR", "XY")))


def test_a_world_without_people_roads_or_land_is_refused() -> None:
    table = pl.DataFrame({"iso2": ["AA"], "road_km": [0.0], "population": [0.0], "land_km2": [0.0]})
    with pytest.raises(InputError, match=r"plan\.weights: only roads and people and land count, of which AA have none"):
        country_quotas(table, PlanSettings(exclude=()))


def test_weights_by_which_nobody_gets_anything_are_refused_with_a_way_out() -> None:
    roads = {"roads": 1, "people": 0, "land": 0}
    with pytest.raises(
        InputError, match=r"plan\.weights: only roads count, of which GS, UM have none; give people or land a weight"
    ):
        country_quotas(countries(), PlanSettings(countries=("GS", "UM"), weights=roads))
    assert country_quotas(countries(), PlanSettings(places=3, countries=("GS", "FR"), weights=roads)) == {
        "FR": 3,
        "GS": 0,
    }


def test_figures_that_are_no_numbers_are_refused() -> None:
    table = pl.DataFrame({"iso2": ["AA"], "road_km": [0.0], "population": [float("nan")], "land_km2": [1.0]})
    with pytest.raises(GeofixError, match="must be numbers"):
        country_quotas(table, PlanSettings(exclude=()))
