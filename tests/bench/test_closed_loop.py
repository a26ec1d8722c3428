"""The learner of the closed loop's benchmark, and intervals over training and held-out draws."""

import numpy as np
import polars as pl
import pytest

from bench.closed_loop import Errors, Learner, gain, report
from tasks.reward.metrics import geoscore

WHERE = {"Norway": (60.0, 10.0), "Kenya": (0.0, 37.0), "Japan": (36.0, 139.0)}


def pictures(counts: dict[str, int], seed: int) -> pl.DataFrame:
    """Pictures whose embedding tells the country, and its last number how far north in it."""
    rng, rows = np.random.default_rng(seed), []
    for number, (country, count) in enumerate(counts.items()):
        for _ in range(count):
            north = rng.uniform(-1, 1)
            mark = 0.2 * rng.normal(size=4) + 3.0 * np.eye(4)[number] + [0, 0, 0, north]
            lat, lon = WHERE[country]
            rows.append({"embedding": mark.tolist(), "country": country, "lat": lat + north, "lon": lon})
    return pl.DataFrame(rows)


def test_it_learns_the_country_and_takes_the_most_alike_place_there() -> None:
    known, asked = pictures(dict.fromkeys(WHERE, 40), 1), pictures(dict.fromkeys(WHERE, 20), 2)
    lat, lon = Learner(known, asked).answers(np.arange(known.height))
    assert (np.abs(lon - asked["lon"].to_numpy()) < 1).mean() > 0.95
    assert set(zip(lat, lon, strict=True)) <= set(known.select("lat", "lon").iter_rows())
    exchanged = known.with_columns(pl.col("lat", "lon", "country").gather(np.random.default_rng(0).permutation(120)))
    _, by_chance = Learner(exchanged, asked).answers(np.arange(known.height))
    assert (np.abs(by_chance - asked["lon"].to_numpy()) < 1).mean() < 0.6


def test_a_gain_counts_only_beyond_what_another_draw_of_pictures_gives() -> None:
    """Where one arm has never seen a country it gains; two draws of one plan do not, whichever looks better."""
    held_out = pictures(dict.fromkeys(WHERE, 60), 3)
    everything = [np.arange(held_out.height)]
    without = Errors(pictures({"Norway": 40, "Kenya": 40}, 4), held_out, 1)
    with_it = Errors(pictures({"Norway": 30, "Kenya": 30, "Japan": 20}, 5), held_out, 2)
    more, low, high = gain(without, with_it, geoscore, everything)
    assert 0 < low < more < high
    assert [goal.held for goal in report(without, with_it, held_out["country"])] == [True, True]
    assert not all(goal.held for goal in report(with_it, without, held_out["country"]))
    few = {"Norway": 4, "Kenya": 4, "Japan": 4}
    one, other = (Errors(pictures(few, seed), held_out, seed) for seed in (6, 7))
    _, low, high = gain(one, other, geoscore, everything)
    assert low < 0 < high


def test_the_interval_is_the_same_each_time_and_groups_count_alike() -> None:
    held_out = pictures({"Norway": 60, "Kenya": 20}, 8)
    few, more = (Errors(pictures({"Norway": 10, "Kenya": count}, 9 + count), held_out, count) for count in (2, 10))
    groups = [np.arange(60), np.arange(60, 80)]
    assert gain(few, more, geoscore, groups) == gain(few, more, geoscore, groups)
    own = geoscore(more.km) - geoscore(few.km)
    assert gain(few, more, geoscore, groups)[0] == pytest.approx((own[:60].mean() + own[60:].mean()) / 2)
