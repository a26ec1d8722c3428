"""Wrong plan settings are refused with words a person can act on."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from schemas.load import ConfigError, load_config
from schemas.settings.plan import PRESETS, PlanSettings


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"places": 0}, "greater than or equal to 1"),
        ({"places": -3}, "greater than or equal to 1"),
        ({"weights": {"roads": 0.5, "people": 0.2, "land": 0.2}}, "must sum to 1.*0.9"),
        ({"split": {"train": 1, "validation": 0.5, "benchmark": 0}}, "must sum to 1"),
        ({"countries": ["fr"]}, "'fr' is not an ISO 3166"),
        ({"countries": []}, "at least 1"),
        ({"countries": ["AQ"]}, "plan.exclude leaves out every country"),
        ({"spacing_km": -1}, "greater than or equal to 0"),
        ({"spacing_km": float("nan")}, "spacing_km"),
        ({"within_cell": "roads"}, "gazetteer"),
        ({"preset": "geoseek"}, "geoseek-loc"),
        ({"plaecs": 3}, "plaecs"),
        ({"preset": "geoseek-val", "places": 9}, "places is 9, but preset geoseek-val sets it to 3000"),
        ({"preset": "geobench", "mode": "world"}, "mode is 'world', but preset geobench"),
        ({"preset": "geobench", "cities": {"count": 50}}, "cities.count is 50, but preset geobench sets it to 108"),
        ({"mode": "cities", "places": 5, "cities": {"count": 6}}, "5 places cannot lie in 6 cities"),
        ({"mode": "cities", "population_raster": "people.tif"}, "population_raster is for mode world"),
        ({"mode": "town"}, "world"),
        ({"cities": {"min_people": 100}}, "15000"),
    ],
)
def test_wrong_values_are_explained(given: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=f"(?s){words}"):
        PlanSettings(**given)


def test_presets_name_the_published_sizes() -> None:
    assert PlanSettings(preset="geoseek-loc").places == 20_000
    assert PlanSettings(preset="geoseek-val").places == 3_000
    geobench = PlanSettings(preset="geobench", cities={"min_people": 50_000})
    assert (geobench.mode, geobench.places, geobench.cities.count, geobench.split.benchmark) == ("cities", 512, 108, 1)
    assert geobench.cities.min_people == 50_000
    assert PlanSettings(places=9).places == 9


def test_a_preset_is_read_back_from_what_it_was_written_as() -> None:
    for preset in PRESETS:
        settings = PlanSettings(preset=preset)
        assert PlanSettings.model_validate_json(settings.model_dump_json()) == settings


def test_only_what_decides_the_places_counts() -> None:
    assert PlanSettings(preset="geoseek-val").identity() == PlanSettings(places=3_000).identity()
    assert PlanSettings(cities={"count": 3}).identity() == PlanSettings().identity()
    cities = PlanSettings(mode="cities", cities={"count": 3})
    assert cities.identity() != PlanSettings(mode="cities", cities={"count": 4}).identity()
    assert cities.identity() == PlanSettings(mode="cities", cities={"count": 3}, jitter_km=9).identity()


def test_a_preset_in_a_later_layer_makes_earlier_values_give_way(tmp_path: Path) -> None:
    """The offline profile has its own number of places and split; a preset on the command line is meant instead."""
    plan = load_config(profile="offline", overrides=["plan.preset=geobench"]).plan
    assert (plan.places, plan.mode, plan.split.benchmark) == (512, "cities", 1)
    own = tmp_path / "own.yaml"
    own.write_text("plan: {places: 7, cities: {count: 5, min_people: 20000}}")
    plan = load_config(file=own, overrides=["plan.preset=geobench"]).plan
    assert (plan.places, plan.cities.count, plan.cities.min_people) == (512, 108, 20_000)
    own.write_text("plan: {preset: geoseek-val}")
    assert load_config(file=own).plan.places == 3_000
    with pytest.raises(ConfigError, match="places is 9, but preset geoseek-val sets it to 3000"):
        load_config(file=own, overrides=["plan.places=9"])
    for order in (
        ["plan.places=9", "plan.preset=geobench"],
        ["plan.preset=geobench", "plan.places=9"],
        ["plan.preset=geobench", "plan.cities.count=50"],
    ):
        with pytest.raises(ConfigError, match="leave one of the two out"):
            load_config(overrides=order)
