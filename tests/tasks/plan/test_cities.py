"""A plan of cities: which ones, how wide, and where in them the places lie."""

from collections import Counter

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from schemas.errors import GeofixError
from schemas.settings.plan import PlanSettings, SplitShares
from tasks.geo.atlas import countries
from tasks.geo.boundaries import country_of
from tasks.geo.distance import distance_km
from tasks.plan.cities import all_cities, choose_cities, viewport_km
from tasks.plan.stage import plan_places, planned

GEOBENCH = PlanSettings(preset="geobench")


def check(places: pl.DataFrame, settings: PlanSettings) -> None:
    """What every place must hold, by distances and map lookups of its own."""
    lat, lon = places["lat"].to_numpy(), places["lon"].to_numpy()
    assert (country_of(lat, lon) == places["country"].to_numpy()).all()
    half = places["viewport_km"].to_numpy() / 2
    city_lat, city_lon = places["city_lat"].to_numpy(), places["city_lon"].to_numpy()
    # Along the meridian a square is exact; across, its side is measured at the city's own latitude.
    assert (distance_km(city_lat, city_lon, lat, city_lon) <= half + 1e-3).all()
    assert (distance_km(city_lat, city_lon, city_lat, lon) <= half + 1e-3).all()
    apart = distance_km(lat[:, None], lon[:, None], lat[None, :], lon[None, :])
    np.fill_diagonal(apart, np.inf)
    assert apart.min(initial=np.inf) >= settings.spacing_km
    split = places["split"].to_numpy()
    other = split[:, None] != split[None, :]
    assert not other.any() or apart[other].min() >= settings.buffer_km
    for group in ("cell", "city_id"):
        assert (places.group_by(group).agg(pl.col("split").n_unique())["split"] == 1).all()


def test_the_geobench_preset_has_the_published_numbers() -> None:
    places, refused = plan_places(GEOBENCH)
    assert (places.height, refused.height) == (512, 0)
    assert places["city_id"].n_unique() == 108
    assert places["country"].n_unique() == 66
    continents = countries().filter(pl.col("iso2").is_in(places["country"].to_list()))["continent"]
    assert continents.n_unique() == 6
    assert set(places["split"]) == {"benchmark"}
    assert Counter(Counter(places["city_id"].to_list()).values()) == {5: 80, 4: 28}  # 512 = 80 * 5 + 28 * 4
    check(places, GEOBENCH)


@effort(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**40),
    codes=st.lists(st.sampled_from(["FR", "DE", "US", "JP", "SG", "NL", "NZ", "FJ", "BR"]), min_size=1, unique=True),
    count=st.integers(1, 8),
    more=st.integers(0, 40),
    spacing_km=st.sampled_from([0.0, 1.0, 4.0]),
    buffer_km=st.sampled_from([0.0, 10.0, 30.0]),
    viewport=st.sampled_from([None, 3.0, 60.0]),
)
def test_random_plans_of_cities_hold_every_rule(
    seed: int, codes: list[str], count: int, more: int, spacing_km: float, buffer_km: float, viewport: float | None
) -> None:
    settings = PlanSettings(
        mode="cities",
        seed=seed,
        countries=tuple(codes),
        places=count + more,
        spacing_km=spacing_km,
        buffer_km=buffer_km,
        split=SplitShares(train=0.5, validation=0.25, benchmark=0.25),
        cities={"count": count, "min_people": 15_000, "viewport_km": viewport},
    )
    try:
        places, refused = plan_places(settings)
    except GeofixError as error:
        assert "lie apart" in str(error)  # Singapore is one city
        return
    assert places.height + refused.height == count + more
    assert sum(planned(settings).values()) == count + more
    if places.height:
        check(places, settings)


def test_the_same_settings_choose_the_same_cities_and_another_seed_others() -> None:
    assert choose_cities(GEOBENCH).equals(choose_cities(PlanSettings(preset="geobench")))
    other = choose_cities(PlanSettings(preset="geobench", seed=8))
    shared = set(other["city_id"]) & set(choose_cities(GEOBENCH)["city_id"])
    assert len(shared) < 60  # small countries have one large city, which any seed takes


def test_viewports_do_not_overlap_and_quarters_are_not_cities() -> None:
    """All of the United States' and Britain's: the boroughs of New York and London belong to them."""
    cities = choose_cities(
        PlanSettings(mode="cities", countries=("GB", "US"), places=200, cities={"count": 120}, split=ONE_SPLIT)
    )
    assert not set(cities["name"]) & {"Brooklyn", "Queens", "Manhattan", "The Bronx", "Islington", "Brent"}
    lat, lon, half = (cities[name].to_numpy() for name in ("lat", "lon", "viewport_km"))
    half = half / 2
    up = distance_km(lat[:, None], 0 * lat[:, None], lat[None, :], 0 * lat[None, :])
    level = np.minimum(np.abs(lat[:, None]), np.abs(lat[None, :]))
    across = distance_km(level, 0 * level, level, lon[None, :] - lon[:, None])
    clear = np.maximum(up, across) >= half[:, None] + half[None, :] - 0.1
    np.fill_diagonal(clear, True)
    assert clear.all()


ONE_SPLIT = SplitShares(train=1, validation=0, benchmark=0)


def test_inside_a_country_chances_go_with_people() -> None:
    """Of Australia's cities over 400 seeds, the largest comes first as often as its share of the people says."""
    first: Counter[str] = Counter()
    share = 0.0
    for seed in range(400):
        settings = PlanSettings(
            mode="cities", seed=seed, countries=("AU",), places=1, cities={"count": 1}, split=ONE_SPLIT
        )
        (row,) = choose_cities(settings).iter_rows(named=True)
        first[row["name"]] += 1
        share = row["probability"] if row["name"] == "Sydney" else share
    assert 0.2 < share < 0.3  # 5.6 of 21.8 million
    assert abs(first["Sydney"] / 400 - share) < 4 * np.sqrt(share * (1 - share) / 400)


def test_viewports_grow_with_people_within_bounds() -> None:
    assert viewport_km(np.array([15_000.0, 400_000.0, 1_600_000.0, 3e7])).tolist() == [5.0, 10.0, 20.0, 40.0]


def test_more_cities_than_there_are_is_said_with_the_number_there_is() -> None:
    settings = PlanSettings(mode="cities", countries=("MC", "SG"), places=50, cities={"count": 50}, split=ONE_SPLIT)
    with pytest.raises(GeofixError, match=r"plan\.cities\.count: given 50, but only 1 cities of 100,000"):
        plan_places(settings)


def test_a_city_without_room_gives_refusals_that_name_it() -> None:
    settings = PlanSettings(
        mode="cities", countries=("SG",), places=30, cities={"count": 1}, spacing_km=15, split=ONE_SPLIT
    )
    places, refused = plan_places(settings)
    assert 0 < places.height < 30 and places.height + refused.height == 30
    assert set(refused["reason"]) == {"no_place_too_close"}
    assert '"city": "Singapore"' in refused["evidence_json"][0]


def test_the_embedded_cities_lie_in_their_countries() -> None:
    cities = all_cities()
    assert cities.height > 33_000 and cities["city_id"].is_unique().all()
    known = {(row["country"], row["name"]) for row in cities.iter_rows(named=True)}
    assert {("CN", "Xi’an"), ("IE", "Dublin"), ("US", "Washington")} <= known  # GeoBench names these three
