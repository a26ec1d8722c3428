"""How far the luck of the calibration moves what a radius covers."""

import numpy as np

from bench.radius_coverage import covers
from tasks.evaluate.radius import conformal_quantile


def test_the_range_is_that_of_calibrations_drawn_again_and_again() -> None:
    rng = np.random.default_rng(0)
    for answers in (19, 109, 900):
        covered = [conformal_quantile(rng.uniform(size=answers), 0.9) for _ in range(4000)]  # of uniform errors: itself
        low, high = covers(answers, 0.9)
        assert np.allclose(np.quantile(covered, [0.025, 0.975]), [low, high], atol=0.01)
    low, high = covers(900, 0.9)
    assert 0.879 < low < high < 0.921
