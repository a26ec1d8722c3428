"""Two sets of answers to the same queries: McNemar's exact test of each threshold, a paired bootstrap of the rest."""

import math
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binomtest

from tasks.reward.metrics import RESAMPLES, THRESHOLDS_KM, geoscore

Floats = NDArray[np.float64]
MOST_ROWS = 20_000  # above, a seeded sample of the queries is resampled: the interval of more would take minutes


@dataclass(frozen=True)
class Difference:
    """How much the second set is better than the first; `p` is McNemar's, two-sided, where the metric is a share."""

    metric: str
    first: float
    second: float
    difference: float
    low: float
    high: float
    p: float | None
    only_first: int | None = None  # queries that only the first set has right
    only_second: int | None = None
    n: int = 0

    def as_row(self) -> dict[str, object]:
        """The difference with None for what is not finite."""
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}


def compare(
    first_km: ArrayLike, second_km: ArrayLike, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[Difference, ...]:
    """Differences of the accuracies, of the median distance and of the mean GeoScore, with 95 % intervals."""
    first, second = (_far(values) for values in (first_km, second_km))
    if first.shape != second.shape:
        raise ValueError(f"{len(first)} and {len(second)} answers cannot be paired")
    if not len(first):
        return ()
    rng = np.random.default_rng(seed)
    n = len(first)
    found = [_shares(f"acc@{edge:g}km", first <= edge, second <= edge) for edge in THRESHOLDS_KM]
    medians = float(np.median(first)), float(np.median(second))
    # Of more rows a sample is resampled, and its interval narrowed to the size of the whole.
    rows = rng.choice(n, MOST_ROWS, replace=False) if n > MOST_ROWS else np.arange(n)
    below, above = _median_interval(first[rows], second[rows], resamples, rng)
    narrower = math.sqrt(len(rows) / n)
    middle = medians[1] - medians[0]
    found.append(
        Difference("median_km", *medians, middle, middle + below * narrower, middle + above * narrower, None, n=n)
    )
    gain = geoscore(np.where(np.isinf(second), np.nan, second)) - geoscore(np.where(np.isinf(first), np.nan, first))
    firsts = float(geoscore(np.where(np.isinf(first), np.nan, first)).mean())
    mean = float(gain.mean())
    if n <= MOST_ROWS:
        drawn = np.array([gain[rng.integers(0, n, n)].mean() for _ in range(resamples)])
        low, high = (float(value) for value in np.quantile(drawn, [0.025, 0.975]))
    else:  # of so many rows the mean is normal, and the bootstrap's interval with it
        width = 1.96 * float(gain.std(ddof=1)) / math.sqrt(n)
        low, high = mean - width, mean + width
    found.append(Difference("geoscore_mean", firsts, firsts + mean, mean, low, high, None, n=n))
    return tuple(found)


def _shares(name: str, first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Difference:
    n = len(first)
    gained, lost = int((second & ~first).sum()), int((first & ~second).sum())
    p = float(binomtest(gained, gained + lost, 0.5).pvalue) if gained + lost else 1.0
    difference = (gained - lost) / n
    # The interval of a difference of paired shares (Newcombe's plain form, with the 1/n of a continuity correction).
    spread = math.sqrt(max(0.0, (gained + lost) / n - difference**2) / n)
    width = 1.96 * spread + 1 / n
    low, high = max(-1.0, difference - width), min(1.0, difference + width)
    return Difference(name, float(first.mean()), float(second.mean()), difference, low, high, p, lost, gained, n)


def _median_interval(a: Floats, b: Floats, resamples: int, rng: np.random.Generator) -> tuple[float, float]:
    """The bootstrap interval of the difference of medians of paired rows, as distances from its middle."""
    values = np.empty(resamples)
    for number in range(resamples):
        rows = rng.integers(0, len(a), len(a))
        values[number] = np.median(b[rows]) - np.median(a[rows])
    values = values[np.isfinite(values)]
    if not len(values):
        return math.nan, math.nan
    low, middle, high = np.quantile(values, [0.025, 0.5, 0.975])
    return float(low - middle), float(high - middle)


def _far(values: ArrayLike) -> NDArray[np.float64]:
    """Distances with infinity for a missing answer: it is a miss, and farther than every other."""
    distance = np.asarray(values, dtype=np.float64).ravel()
    return np.where(np.isfinite(distance), distance, np.inf)
