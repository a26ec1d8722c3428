"""The closed loop: an evaluation adds training places where it was weak, and changes nothing else."""

import itertools
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pydantic import ValidationError

from schemas.settings.plan import PlanSettings
from schemas.settings.review import ReviewSettings
from schemas.settings.services import ServicesSettings
from tasks.lake import Commit, Lake
from tasks.plan import report
from tasks.plan.focus import last_focus, slice_weight
from tasks.plan.stage import STAGE
from tasks.review.site.page import Source
from tasks.review.site.pages.focus import focus_page
from tasks.runtime.runner import Context, run
from tasks.runtime.stage import open_inputs
from tasks.services import connect

AT = {"lat": 0.0, "lon": 0.0}
BATCHES = itertools.count(1)
PLAIN = PlanSettings(places=120, countries=("FR", "DE", "BR", "NO"))
FOCUSED = PLAIN.model_copy(update={"focus": "last-evaluation", "focus_places": 60})


def plan(lake: Lake, settings: PlanSettings) -> pl.DataFrame:
    result = run(STAGE, settings, Context(lake, connect(ServicesSettings(), {})))
    assert result.failed == 0
    return lake.read("places").sort("place_id")


def evaluate(lake: Lake, evaluation: str, weak: str, split: str = "validation") -> None:
    """Scores as `evaluate` writes them: all countries alike but for the weak one."""
    head = {"evaluation_id": evaluation, "snapshot_id": "s1", "policy": "p", "split": split, "metric": "geoscore_mean"}
    number = next(BATCHES)
    system = {"run_id": evaluation, "written_at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number)}
    lake.upsert("scores", [{**head, **system, "value": 2500.0, "n": 400}], Commit(evaluation, number))
    rows: list[dict[str, Any]] = []
    for country in ("France", "Germany", "Brazil", "Norway"):
        value = 200.0 if country == weak else 3000.0
        rows.append({**head, "slice_by": "country", "slice": country, "value": value, "n": 100})
    rows.append({**head, "slice_by": "belt", "slice": "temperate", "value": 2500.0, "n": 300})
    lake.upsert("score_slices", rows, Commit(evaluation, next(BATCHES)))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    labels = [
        {
            "image_id": code,
            "sha256": code,
            "lat": 0.0,
            "lon": 0.0,
            "country_code": code,
            "country": name,
            "split": "train",
        }
        for code, name in (("FR", "France"), ("DE", "Germany"), ("BR", "Brazil"), ("NO", "Norway"))
    ]
    lake.upsert("labels", labels, Commit("labels", next(BATCHES)))
    return lake


def test_a_weak_country_gets_more_training_places_and_the_plain_plan_stays(lake: Lake) -> None:
    plain = plan(lake, PLAIN)
    assert plan(lake, FOCUSED).equals(plain), "nothing was evaluated on validation: the plain plan, as it was written"
    evaluate(lake, "e0", "France", split="benchmark")
    assert plan(lake, FOCUSED).equals(plain), "the benchmark stays held out"
    assert "the plain plan" in report(lake, FOCUSED).markdown

    evaluate(lake, "e1", "Norway")
    found = plan(lake, FOCUSED)
    added = found.drop_nulls("focus")
    assert found.filter(pl.col("focus").is_null()).equals(plain), "rows of the plain plan are not even written again"
    assert added.height == 60 and set(added["split"]) == {"train"} and set(added["focus"]) == {"e1|s1"}
    train = plain.filter(pl.col("split") == "train")
    before, now = ((rows["country"] == "NO").mean() for rows in (train, added))
    assert now > 1.5 * before, (before, now)
    [factor] = added.filter(country="NO")["focus_factor"].unique().to_list()
    assert 1 < factor <= 3 and json.loads(added.filter(country="NO")["focus_why_json"][0])["country"] == round(
        factor, 4
    )
    assert max(added.filter(pl.col("country") != "NO")["focus_factor"]) < 1 < factor
    assert plan(lake, FOCUSED).equals(found), "the same evaluation gives the same places"
    words = report(lake, FOCUSED)
    assert "60 places added for p (400 validation answers)" in words.markdown
    assert words.files["focus.png"].read_bytes()[:4] == b"\x89PNG" and "Norway" in words.files["focus.csv"].read_text()

    evaluate(lake, "e2", "Brazil")
    third = plan(lake, FOCUSED)
    assert third.filter(pl.col("focus") == "e1|s1").equals(added), "what was added before stays"
    last = third.filter(pl.col("focus") == "e2|s1")
    assert last.height == 60 and (last["country"] == "BR").sum() > (added["country"] == "BR").sum()
    distinct = third.select(pl.struct("lat", "lon").n_unique()).item()
    assert distinct == third.height == 240
    blocks = focus_page.make(Source(lake, {"snapshot_id": "s", "table_versions_json": "{}"}, ReviewSettings()))
    tables = [block for block in blocks if block["block"] == "table"]
    assert [row[4] for row in tables[0]["rows"]] == [60, 60] and tables[1]["rows"][0][2] >= tables[1]["rows"][1][2]
    # Another seed has other splits: places of the old ones would leak, and go.
    other = plan(lake, FOCUSED.model_copy(update={"seed": 8}))
    assert set(other.drop_nulls("focus")["focus"]) == {"e2|s1"} and set(other["seed"]) == {8}


def test_factors_are_bounded_and_few_answers_count_little(lake: Lake) -> None:
    evaluate(lake, "e1", "Norway")
    for bound in (1.0, 1.2, 3.0):
        focus = last_focus(open_inputs(STAGE, lake), FOCUSED.model_copy(update={"focus_bound": bound}))
        assert focus is not None and all(1 / bound <= one <= bound for one in focus.countries.values())
        assert focus.countries["NO"] == max(focus.countries.values())
    assert slice_weight(0.0, 100, 0.5) > slice_weight(0.0, 2, 0.5) > 1 > slice_weight(1.0, 2, 0.5)
    assert slice_weight(0.5, 50, 0.5) == pytest.approx(1) and slice_weight(1.0, 5, 1.0) == 1
    with pytest.raises(ValidationError, match="focus is for mode world"):
        PlanSettings(mode="cities", focus="last-evaluation")


def test_settings_of_a_focus_leave_old_plans_the_same_ones() -> None:
    assert not any("focus" in name for name in FOCUSED.identity()) and FOCUSED.identity() == PLAIN.identity()
