"""The plan through the frame: rows in the lake, nothing lost, nothing redone."""

import time
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import tasks.plan.table
from schemas.errors import InputError
from schemas.settings.plan import PlanSettings
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings
from tasks.geo.atlas import countries
from tasks.lake import Lake
from tasks.plan import STAGES
from tasks.plan.quota import country_quotas
from tasks.plan.stage import compute, plan_places
from tasks.runtime.runner import Context, Inputs, Tick, run
from tasks.services import connect


def test_the_plan_lands_in_the_lake_and_is_not_redone(tmp_path: Path) -> None:
    context = Context(Lake(tmp_path / "lake"), connect(ServicesSettings(), {}))
    settings = PlanSettings(places=50, countries=("FR", "MC", "JP"))
    first = run(STAGES[0], settings, context)
    places = context.lake.read("places")
    assert places.height == 50 and set(places["country"]) <= {"FR", "MC", "JP"}
    assert (
        places.select("country_name", "admin1", "cell", "weight", "probability", "plan_version")
        .null_count()
        .sum_horizontal()[0]
        == 0
    )
    assert first.kept == 50
    again = run(STAGES[0], settings, context)
    assert (again.kept, again.skipped) == (0, 50)


def test_the_time_shown_is_that_of_the_whole_stage(tmp_path: Path) -> None:
    """Drawing the places is nearly all of it, and comes before the first row is written."""
    ticks: list[Tick] = []
    context = Context(Lake(tmp_path / "lake"), connect(ServicesSettings(), {}), progress=ticks.append)

    def slow(inputs: Inputs, settings: PlanSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
        time.sleep(0.4)
        return compute(inputs, settings)

    result = run(replace(STAGES[0], compute=slow), PlanSettings(places=5, countries=("FR",)), context)
    assert ticks[-1].finished and 0.4 <= ticks[-1].seconds <= result.seconds + 0.1


def test_another_plan_replaces_the_first(tmp_path: Path) -> None:
    context = Context(Lake(tmp_path / "lake"), connect(ServicesSettings(), {}))
    run(STAGES[0], PlanSettings(places=30, countries=("FR",)), context)
    run(STAGES[0], PlanSettings(places=20, countries=("MC", "JP"), spacing_km=3), context)
    places = context.lake.read("places")
    assert places.height == 20 and set(places["country"]) <= {"MC", "JP"}


def test_places_without_room_are_rejects_with_a_reason(tmp_path: Path) -> None:
    context = Context(Lake(tmp_path / "lake"), connect(ServicesSettings(), {}))
    run(STAGES[0], PlanSettings(places=12, countries=("MC",), spacing_km=10), context)
    rejects = context.lake.read("rejects")
    assert rejects.height + context.lake.read("places").height == 12
    assert set(rejects["reason"]) == {"no_place_too_close"}


def test_geoseek_loc_is_the_same_with_one_worker_and_with_two(tmp_path: Path) -> None:
    """20,000 places: quotas of eq. 11 to the unit (test_quota proves them with fractions), over 150 countries."""
    settings = PlanSettings(preset="geoseek-loc")
    tables = []
    for workers in (1, 2):
        lake = Lake(tmp_path / str(workers))
        run(STAGES[0], settings, Context(lake, connect(ServicesSettings(), {}), SpreadSettings(workers=workers)))
        tables.append(lake.read("places").drop("run_id", "written_at").sort("place_id"))
    assert tables[0].equals(tables[1])
    drawn = dict(tables[0].group_by("country").len().iter_rows())
    assert drawn == {code: quota for code, quota in country_quotas(countries(), settings).items() if quota}
    assert len(drawn) > 150 and sum(drawn.values()) == 20_000


def test_rows_are_the_same_however_many_are_made_together(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = (PlanSettings(places=40, countries=("FR", "AW"), spacing_km=5), PlanSettings(preset="geobench"))
    whole = [plan_places(settings) for settings in plans]
    monkeypatch.setattr(tasks.plan.table, "SLICE", 7)
    for settings, (places, refused) in zip(plans, whole, strict=True):
        again, lost = plan_places(settings)
        assert again.equals(places) and lost.equals(refused)
        assert places.rows() == places.sort("country", "place_id").rows()


def test_a_plan_without_any_place_is_a_table_without_rows() -> None:
    hemmed = {"train": 0.4, "validation": 0.3, "benchmark": 0.3}  # San Marino's neighbour cell is of another split
    places, refused = plan_places(PlanSettings(places=1, countries=("SM",), buffer_km=50, split=hemmed))
    assert (places.height, refused.height) == (0, 1) and "probability" in places.columns


def test_a_plan_without_any_place_names_the_settings_and_writes_nothing(tmp_path: Path) -> None:
    hemmed = {"train": 0.4, "validation": 0.3, "benchmark": 0.3}
    settings = PlanSettings(places=1, countries=("SM",), buffer_km=50, split=hemmed)
    lake = Lake(tmp_path / "lake")
    with pytest.raises(
        InputError, match=r"plan\.buffer_km 50, plan\.spacing_km 1: none of the 1 places finds room \(near"
    ):
        run(STAGES[0], settings, Context(lake, connect(ServicesSettings(), {}), SpreadSettings(workers=1)))
    assert lake.existing() == []
