"""Pass@K, regimes and the report of Table 8."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.settings.difficulty import DifficultySettings
from tasks.difficulty.regime import _row as row_of
from tasks.difficulty.regime import measure_difficulty, regime, table8
from tasks.difficulty.report import without_variance
from tasks.geo.distance import distance_km
from tasks.train.rollouts.source import Episode, recipe_scorer
from tasks.train.token_samples import Completion

THRESHOLDS = (1.0, 25.0, 200.0, 750.0)
errors = st.lists(st.none() | st.floats(0, 20_000), min_size=8, max_size=8)


def test_the_paper_s_regimes():
    assert [regime(passed, 8) for passed in (0, 1, 7, 8)] == ["intractable", "learnable", "learnable", "mastered"]
    with pytest.raises(ValueError):
        regime(9, 8)


@pytest.mark.parametrize(
    ("errors_km", "passes", "phase", "reason"),
    [
        ([0.5] * 8, (8, 8, 8, 8), None, "mastered"),
        ([9000.0] * 8, (0, 0, 0, 0), None, "intractable"),
        ([None] * 8, (0, 0, 0, 0), None, "intractable"),
        ([100.0] * 8, (0, 0, 8, 8), None, "all_or_nothing"),
        ([0.5] + [9000.0] * 7, (1, 1, 1, 1), 1, None),
        ([10.0] + [100.0] * 7, (0, 1, 8, 8), 1, None),
        ([100.0] * 4 + [None] * 4, (0, 0, 4, 4), 2, None),
        ([1.0] * 8, (0, 8, 8, 8), None, "all_or_nothing"),  # strictly under the threshold
    ],
)
def test_measure(errors_km, passes, phase, reason):
    found = measure_difficulty(errors_km, THRESHOLDS, (1.0, 25.0))
    assert (found.passes, found.phase, found.kept) == (passes, phase, phase is not None)
    if reason:
        assert found.reason == reason


@given(errors)
def test_passes_rise_with_the_threshold_and_decide_the_regime(errors_km):
    found = measure_difficulty(errors_km, THRESHOLDS, (1.0, 25.0))
    assert list(found.passes) == sorted(found.passes)
    assert all((kind == "learnable") == (0 < n < 8) for n, kind in zip(found.passes, found.regimes, strict=True))
    assert found.kept == ("learnable" in found.regimes)
    assert (found.phase == 1) == ("learnable" in found.regimes[:2])


@given(st.lists(errors, min_size=1, max_size=30))
def test_table8_accounts_for_every_picture(pictures):
    found = [measure_difficulty(e, THRESHOLDS, (1.0, 25.0)) for e in pictures]
    frame = pl.DataFrame({"threshold_km": [list(THRESHOLDS)] * len(found), "regimes": [list(f.regimes) for f in found]})
    table = table8(frame)
    assert table["threshold"].to_list() == ["Street (1km)", "City (25km)", "Region (200km)", "Country (750km)"]
    for row in table.iter_rows(named=True):
        assert row["mastered"] + row["intractable"] + row["filtered"] == row["total"] == len(pictures)
        assert row["mastered_pct"] + row["intractable_pct"] + row["filtered_pct"] == pytest.approx(100, abs=0.02)


def test_table8_prints_the_papers_percentages():
    counts = pl.DataFrame({"regimes": ["mastered", "intractable", "learnable"], "n": [3675, 179_665, 22_766]})
    pictures = counts.select(pl.col("regimes").repeat_by("n")).explode("regimes")
    table = table8(pictures.select(pl.concat_list(pl.lit(1.0)).alias("threshold_km"), pl.concat_list("regimes")))
    assert table.select("mastered_pct", "intractable_pct", "filtered_pct").row(0) == (1.78, 87.17, 11.05)


def test_table8_of_nothing_is_empty():
    assert table8(pl.DataFrame(schema={"threshold_km": pl.List(pl.Float64), "regimes": pl.List(pl.String)})).is_empty()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"k": 1}, "k"),
        ({"thresholds_km": (25, 1)}, "rise"),
        ({"thresholds_km": ()}, "rise"),
        ({"thresholds_km": (0, 1, 25)}, "greater than 0"),
        ({"thresholds_km": (1, 25), "phase_one_km": (2,)}, "phase_one_km"),
        ({"temperature": 0}, "temperature"),
    ],
)
def test_wrong_settings_are_explained(wrong, words):
    with pytest.raises(ValidationError, match=words):
        DifficultySettings(**wrong)


def test_the_filter_leaves_no_group_without_variance_by_the_trainers_own_reward():
    """Points north of the truth, in km; 300 and 900 km apart Pass@K varies, and eq. 8 pays nothing for either."""
    tried = {
        "near and far": [0.5, 10, 60, 900],
        "only the country": [300, 900, 300, 900],
        "mastered": [0.1, 0.2, 0.1, 0.3],
        "far": [5000] * 4,
        "unread": [None, None, 12, None],
    }
    scorer, settings = recipe_scorer("spotagent"), DifficultySettings(k=4)
    truth = {"lat": 10.0, "lon": 20.0}
    degree_km = distance_km(10.0, 20.0, 11.0, 20.0)
    rows = []
    for name, errors_km in tried.items():
        texts = ["no idea" if km is None else f"<answer>{10 + km / degree_km:.6f}, 20.0</answer>" for km in errors_km]
        judged = scorer([(Episode(Completion([], []), True, text), truth) for text in texts])
        group = {"error_km": errors_km, "reward": [one.reward for one in judged], "snapshot_id": ["s"] * 4}
        rows.append(row_of(name, "p", pl.DataFrame(group, strict=False), settings))
    regimes = pl.DataFrame(rows)
    kept = regimes.filter("kept")
    assert kept["image_id"].to_list() == ["near and far", "unread"] and kept["reward_varies"].all()
    reasons = dict(regimes.filter(~pl.col("kept")).select("image_id", "reason").iter_rows())
    assert reasons == {"only the country": "no_reward_variance", "mastered": "mastered", "far": "intractable"}
    assert without_variance(regimes) == (
        "Groups without reward variance: 3 of 5 (60.0 %) before the filter, 0 of 2 (0.0 %) after it."
    )
