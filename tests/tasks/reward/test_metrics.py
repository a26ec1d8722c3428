import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from tasks.reward.metrics import THRESHOLDS_KM, Metric, compare, geoscore, summarize


def named(metrics: list[Metric]) -> dict[str, Metric]:
    return {metric.name: metric for metric in metrics}


def test_misses_stay_in_the_denominator() -> None:
    found = named(summarize([0.4, 1.0, 3.0, 25.0, 3000.0, math.nan, math.nan, math.inf]))
    assert found["acc@0.5km"].value == 1 / 8
    assert found["acc@1km"].value == 2 / 8  # at D counts: SpotAgent eq. 12
    assert found["acc@3km"].value == 3 / 8
    assert found["below_3km"].value == 2 / 8  # strictly below: GeoVista
    assert found["acc@2500km"].value == 4 / 8
    assert found["parse_failure_rate"].value == 3 / 8
    assert {metric.n for metric in found.values() if metric.name != "mean_km"} == {8}
    assert found["mean_km"].n == 5
    assert found["mean_km"].value == pytest.approx((0.4 + 1 + 3 + 25 + 3000) / 5)
    assert found["median_km"].value == (25 + 3000) / 2


def test_geoscore_is_eq_10() -> None:
    assert geoscore([0.0, 18050.0, 1805.0, math.nan]) == pytest.approx([5000, 5000 * math.exp(-10), 5000 / math.e, 0])
    assert named(summarize([0.0, math.nan]))["geoscore_mean"].value == 2500


def test_all_thresholds_are_there() -> None:
    names = [metric.name for metric in summarize([1.0])]
    assert [f"acc@{edge}km" for edge in ("0.5", 1, 2, 3, 10, 25, 50, 200, 750, 2500)] == names[: len(THRESHOLDS_KM)]


def test_nothing_answered_and_nothing_asked() -> None:
    found = named(summarize([math.nan, math.nan]))
    assert (
        found["acc@2500km"].value == 0 and found["geoscore_mean"].value == 0 and found["parse_failure_rate"].value == 1
    )
    assert found["mean_km"].as_row()["value"] is None and found["median_km"].as_row()["value"] is None
    assert all(metric.n == 0 and math.isnan(metric.value) for metric in summarize([]))


def test_several_answers_to_a_query_count_as_their_mean() -> None:
    rng = np.random.default_rng(2)
    once = rng.choice([0.4, 30.0, 400.0, np.nan], 40)
    again = np.repeat(once, 3)  # three times the same answer is no more knowledge
    for one, three in zip(summarize(once), summarize(again, repeats=3), strict=True):
        assert (one.name, one.n) == (three.name, three.n)
        assert three.value == pytest.approx(one.value, nan_ok=True)
        assert (three.low, three.high) == pytest.approx((one.low, one.high), rel=0.1, nan_ok=True)
    mixed = named(summarize([0.4, 400.0, 400.0, 0.4, 0.4, math.nan], {"city": [1, 0, 0, 1, 1, 0]}, repeats=3))
    assert mixed["acc@1km"].value == pytest.approx(1 / 2) and mixed["acc@1km"].n == 2
    assert mixed["parse_failure_rate"].value == pytest.approx(1 / 6)
    assert mixed["city_accuracy"].value == 0.5 and mixed["city_accuracy"].n == 2
    with pytest.raises(ValueError, match="3 to every query"):
        summarize([1.0, 2.0], repeats=3)


def test_the_intervals_are_those_of_resampling_rows() -> None:
    rng = np.random.default_rng(5)
    for n in (400, 401):
        errors = rng.lognormal(4, 2, n)
        errors[: n // 10] = np.nan
        drawn = errors[rng.integers(0, n, (4000, n))]
        found = named(summarize(errors, resamples=4000))
        far = np.where(np.isnan(drawn), np.inf, drawn)
        plain = {
            "acc@25km": (drawn <= 25).mean(axis=1),
            "geoscore_mean": geoscore(drawn).mean(axis=1),
            "mean_km": np.nanmean(drawn, axis=1),
            "median_km": np.median(far, axis=1),
        }
        for name, draws in plain.items():
            low, high = np.quantile(draws, [0.025, 0.975])
            width = high - low
            assert found[name].low == pytest.approx(low, abs=0.1 * width), name
            assert found[name].high == pytest.approx(high, abs=0.1 * width), name


def test_bins_stand_for_many_rows() -> None:
    errors = np.random.default_rng(6).lognormal(5, 2, 50_000)
    mean = named(summarize(errors))["mean_km"]
    half = 1.96 * errors.std() / len(errors) ** 0.5
    assert mean.value == pytest.approx(errors.mean())
    assert mean.high - mean.low == pytest.approx(2 * half, rel=0.15)


def test_bins_have_the_width_of_single_rows() -> None:
    rng = np.random.default_rng(11)
    errors = np.where(rng.random(8_000) < 0.9, 1.0, rng.uniform(0, 20_000, 8_000))  # most of the spread is in a tail
    errors[:800] = np.nan
    found = named(summarize(errors, resamples=4000))
    drawn = rng.multinomial(len(errors), np.full(len(errors), 1 / len(errors)), size=1500)
    known = ~np.isnan(errors)
    plain = {
        "geoscore_mean": drawn @ geoscore(errors) / len(errors),
        "mean_km": drawn[:, known] @ errors[known] / drawn[:, known].sum(axis=1),
    }
    for name, draws in plain.items():
        low, high = np.quantile(draws, [0.025, 0.975])
        assert found[name].high - found[name].low == pytest.approx(high - low, rel=0.1), name


def test_same_seed_same_intervals() -> None:
    errors = np.random.default_rng(7).lognormal(4, 2, 300)
    assert summarize(errors, seed=3) == summarize(errors[::-1], seed=3)
    assert summarize(errors, seed=3) != summarize(errors, seed=4)


def test_levels_count_where_the_truth_has_them() -> None:
    found = named(summarize([1.0, 2.0, math.nan], {"country": [1, 0, 0], "city": [1, math.nan, 0]}))
    assert (found["country_accuracy"].value, found["country_accuracy"].n) == (1 / 3, 3)
    assert (found["city_accuracy"].value, found["city_accuracy"].n) == (1 / 2, 2)
    with pytest.raises(ValueError, match="verdicts"):
        summarize([1.0], {"city": [1, 1]})


@given(st.lists(st.one_of(st.floats(0, 20015), st.just(math.nan)), min_size=1, max_size=60))
def test_accuracy_grows_with_the_threshold_and_holds_its_interval(errors: list[float]) -> None:
    found = summarize(errors, resamples=50)
    accuracy = [metric.value for metric in found[: len(THRESHOLDS_KM)]]
    assert accuracy == sorted(accuracy)
    assert accuracy[-1] + named(found)["parse_failure_rate"].value <= 1 + 1e-12
    for edge, value in zip(THRESHOLDS_KM, accuracy, strict=True):
        assert value == sum(error <= edge for error in errors) / len(errors)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 5))
def test_mcnemars_p_is_the_exact_binomial_one(lost: int, gained: int, same: int) -> None:
    first = [0.1] * lost + [9000.0] * gained + [0.1] * same
    second = [9000.0] * lost + [0.1] * gained + [0.1] * same
    found = compare(first, second, 10)[0]
    assert (found.only_first, found.only_second) == (lost, gained)
    assert found.p == pytest.approx(binomtest(gained, gained + lost).pvalue if gained + lost else 1.0)


def test_a_million_rows_take_seconds() -> None:
    errors = np.random.default_rng(8).lognormal(4, 3, 1_000_000)
    start = time.perf_counter()
    summarize(errors)
    assert time.perf_counter() - start < 10
