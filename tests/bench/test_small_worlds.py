"""Random small worlds, sixty of the ten thousand of `python -m bench plan_small_worlds`; and the check has teeth."""

import numpy as np
import polars as pl
import pytest

from bench.plan_small_worlds import breaches, has_room, main, random_cities, random_world
from schemas.settings.plan import PlanSettings
from tasks.geo.atlas import countries
from tasks.plan.stage import plan_places


def test_random_small_worlds_hold_every_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(60) == 0
    assert "60 worlds hold" in capsys.readouterr().out


def test_worlds_are_small_and_many_kinds() -> None:
    random = np.random.default_rng(1)
    codes = countries()["iso2"].to_list()
    worlds = [random_world(random, codes) for _ in range(50)]
    assert {world.within_cell for world in worlds} == {"gazetteer", "uniform"}
    assert {world.buffer_km for world in worlds} == {0, 2, 10, 30} and max(world.places for world in worlds) < 60


def test_what_is_wrong_with_a_plan_is_found() -> None:
    settings = PlanSettings(places=20, countries=("FR",), split={"train": 0.5, "validation": 0.5, "benchmark": 0})
    places, refused = plan_places(settings)
    assert breaches(settings, places, refused) == []
    nowhere = places.with_columns(lat=pl.when(pl.int_range(pl.len()) == 3).then(0.0).otherwise("lat"))
    assert breaches(settings, nowhere, refused) == ["a place outside FR"]
    assert breaches(settings, places.head(19), refused) == ["19 placed + 0 refused is not 20"]
    twice = pl.concat([places.head(19), places.head(1)])
    assert breaches(settings, twice, refused) == ["two places 0.0 km apart"]
    mixed = places.with_columns(split=pl.Series(["train", "validation"] * 10))
    assert breaches(settings.model_copy(update={"buffer_km": 500.0}), mixed, refused)[0].startswith("two splits ")
    lost = pl.DataFrame({"id": ["FR-0000019"], "reason": ["no_place_too_close"], "evidence_json": ["{}"]})
    assert breaches(settings, places.head(19), lost) == ["FR was refused a place but has room"]


def test_what_is_wrong_with_a_plan_of_cities_is_found() -> None:
    random = np.random.default_rng(3)
    drawn = random_cities(random, ["FR", "DE", "IN", "CN", "JP"] * 4)
    assert drawn.mode == "cities" and drawn.places >= drawn.cities.count
    settings = PlanSettings(mode="cities", places=12, countries=("FR", "DE"), cities={"count": 3})
    places, refused = plan_places(settings)
    assert breaches(settings, places, refused) == []
    other = pl.Series(["train", "benchmark"] * 6)
    assert "a city in two splits" in breaches(settings, places.with_columns(split=other), refused)
    moved = places.with_columns(city_lat=pl.col("city_lat") + 0.5)
    assert breaches(settings, moved, refused) == ["a place outside its city's viewport"]


def test_an_island_hemmed_in_by_its_own_cells_is_found() -> None:
    """Aruba as it was: all places in a strip of the larger cell, and most of the island empty."""
    settings = PlanSettings(places=16, countries=("AW",), seed=12)
    places, refused = plan_places(settings)
    assert (places.height, refused.height) == (16, 0)
    strip = places.with_columns(lon=pl.Series(np.linspace(-69.906, -69.885, 16)), lat=pl.lit(12.45))
    assert has_room("AW", settings, strip.head(13))
    crowded = settings.model_copy(update={"places": 200, "spacing_km": 3.0})
    assert not has_room("AW", crowded, plan_places(crowded)[0])


def test_a_country_that_is_full_or_hemmed_in_has_no_room() -> None:
    crowded = PlanSettings(places=2, countries=("MC",), spacing_km=10)
    assert not has_room("MC", crowded, plan_places(crowded)[0])
    assert has_room("MC", crowded.model_copy(update={"spacing_km": 0.1}), plan_places(crowded)[0])
    # San Marino lies 1 km from the next cell, which is of another split for this seed.
    hemmed = PlanSettings(
        places=1, countries=("SM",), buffer_km=50, split={"train": 0.4, "validation": 0.3, "benchmark": 0.3}
    )
    places, refused = plan_places(hemmed)
    assert (places.height, refused.height) == (0, 1) and not has_room("SM", hemmed, places)
