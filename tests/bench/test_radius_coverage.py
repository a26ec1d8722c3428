"""The learner, and how far the luck of the calibration moves what a radius covers."""

import numpy as np
import polars as pl

from bench.radius_coverage import Learner, covers
from tasks.evaluate.radius import conformal_quantile

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
    known, held = pictures(dict.fromkeys(WHERE, 40), 1), pictures(dict.fromkeys(WHERE, 20), 2)
    lat, lon = Learner(known, held).answers(np.arange(known.height))
    assert (np.abs(lon - held["lon"].to_numpy()) < 1).mean() > 0.95
    assert set(zip(lat, lon, strict=True)) <= set(known.select("lat", "lon").iter_rows())
    exchanged = known.with_columns(pl.col("lat", "lon", "country").gather(np.random.default_rng(0).permutation(120)))
    _, by_chance = Learner(exchanged, held).answers(np.arange(known.height))
    assert (np.abs(by_chance - held["lon"].to_numpy()) < 1).mean() < 0.6


def test_the_range_is_that_of_calibrations_drawn_again_and_again() -> None:
    rng = np.random.default_rng(0)
    for answers in (19, 109, 900):
        covered = [conformal_quantile(rng.uniform(size=answers), 0.9) for _ in range(4000)]  # of uniform errors: itself
        low, high = covers(answers, 0.9)
        assert np.allclose(np.quantile(covered, [0.025, 0.975]), [low, high], atol=0.01)
    low, high = covers(900, 0.9)
    assert 0.879 < low < high < 0.921
