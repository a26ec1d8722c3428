"""What a set of answers is worth, with 95 % intervals: exact binomial ones of shares, bootstrap ones of the rest.

The denominator is fixed: every query counts. A missing answer is a NaN distance; it is a miss at every threshold,
a GeoScore of 0 and farther than every distance in the median. Only the mean distance, which has no value for an answer
that names no place, is over the answered queries, and says so with its own n.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

# SpotAgent and GeoAgent 1, 25, 200, 750, 2500; Thinking with Map 0.5, 2, 10, 25, 200, 750; GeoVista 3; smileGeo 50
THRESHOLDS_KM = (0.5, 1.0, 2.0, 3.0, 10.0, 25.0, 50.0, 200.0, 750.0, 2500.0)
GEOSCORE_SCALE_KM = 18050.0
RESAMPLES = 1000
# Above _MOST_ROWS rows, _BINS bins of equal counts stand for the rows when means are resampled.
_MOST_ROWS, _BINS = 2000, 200

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Metric:
    """A figure with its interval and the number of queries under it; NaN where there is none."""

    name: str
    value: float
    low: float
    high: float
    n: int

    def as_row(self) -> dict[str, float | int | str | None]:
        """The metric with None for what is not finite, as tables and JSON want it."""
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}


def geoscore(error_km: ArrayLike) -> Floats:
    """GeoAgent eq. 10, 0..5000; a missing answer (NaN) scores 0."""
    distance = np.asarray(error_km, dtype=np.float64)
    return np.where(np.isnan(distance), 0.0, 5000.0 * np.exp(-10.0 * distance / GEOSCORE_SCALE_KM))


def summarize(
    error_km: ArrayLike,
    levels: Mapping[str, ArrayLike] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
    repeats: int = 1,
) -> list[Metric]:
    """Every metric of a set of distances in km, one per answer, NaN for an answer that could not be read.

    `levels` gives per level one verdict an answer: 1 right, 0 wrong, NaN where the truth has no such level. With
    `repeats` answers to every query each counts as a part of one: values are means over the answers, as pass@1 of N
    samples is, and intervals those of as many independent answers as there are queries.
    """
    distance = np.asarray(error_km, dtype=np.float64).ravel()
    if (distance < 0).any():
        raise ValueError("a distance is negative")
    distance = np.sort(np.where(np.isfinite(distance), distance, np.nan))  # NaN sorts last
    rng = np.random.default_rng(seed)
    n = len(distance) // repeats
    if n * repeats != len(distance):
        raise ValueError(f"{len(distance)} answers are not {repeats} to every query")
    answered = int(np.searchsorted(np.isnan(distance), True))
    metrics = [
        # below or at D: SpotAgent eq. 12
        share(f"acc@{edge:g}km", int(np.searchsorted(distance[:answered], edge, side="right")) / repeats, n)
        for edge in THRESHOLDS_KM
    ]
    # strictly below, as GeoVista reports it
    below = int(np.searchsorted(distance[:answered], 3.0, side="left"))
    metrics.append(share("below_3km", below / repeats, n))
    metrics.append(share("parse_failure_rate", n - answered / repeats, n))
    metrics.append(_median(distance, n, resamples, rng))
    metrics.extend(_means(distance, answered, n, resamples, rng))
    for name, verdicts in (levels or {}).items():
        verdict = np.asarray(verdicts, dtype=np.float64).ravel()
        if len(verdict) != len(distance):
            raise ValueError(f"{len(distance)} distances but {len(verdict)} verdicts for {name}")
        judged = ~np.isnan(verdict)
        metrics.append(share(f"{name}_accuracy", verdict[judged].sum() / repeats, int(judged.sum()) // repeats))
    return metrics


def share(name: str, hits: float, n: int) -> Metric:
    """A share with its exact binomial interval (Clopper and Pearson), which has a width at 0 % and 100 % too.

    Hits may be parts, where a query has several answers: the interval is then wider than need be, never narrower.
    """
    if n == 0:
        return Metric(name, math.nan, math.nan, math.nan, 0)
    from scipy.special import betaincinv  # takes half a second to import

    low = 0.0 if hits == 0 else float(betaincinv(hits, n - hits + 1, 0.025))
    high = 1.0 if hits == n else float(betaincinv(hits + 1, n - hits, 0.975))
    return Metric(name, hits / n, low, high, n)


def _median(ordered: Floats, n: int, resamples: int, rng: np.random.Generator) -> Metric:
    """The median over all answers, a missing one being farther than any; NaN when it falls on one.

    The k-th of n uniform draws is Beta(k, n + 1 - k) distributed: one draw of it gives the resample's median exactly.
    """
    if n == 0:
        return Metric("median_km", math.nan, math.nan, math.nan, 0)
    far = np.where(np.isnan(ordered), np.inf, ordered)
    last = len(far) - 1
    lower = (n + 1) // 2  # rank of the lower middle, from 1
    first = rng.beta(lower, n + 1 - lower, resamples)
    drawn = far[np.minimum((first * len(far)).astype(np.int64), last)]
    value = (far[last // 2] + far[(last + 1) // 2]) / 2
    if n % 2 == 0:
        second = first + (1 - first) * rng.beta(1, n - lower, resamples)  # the next order statistic, given the first
        drawn = (drawn + far[np.minimum((second * len(far)).astype(np.int64), last)]) / 2
    # Between two infinities a percentile by interpolation would be NaN - NaN: take drawn values.
    low, high = np.quantile(drawn, [0.025, 0.975], method="inverted_cdf")
    value, low, high = (float(x) if np.isfinite(x) else math.nan for x in (value, low, high))
    return Metric("median_km", value, low, high, n)


def _means(ordered: Floats, answered: int, n: int, resamples: int, rng: np.random.Generator) -> tuple[Metric, Metric]:
    """Mean GeoScore over all answers, and mean km over those that name a place, from the same resamples of n."""
    every = len(ordered)
    if n == 0:
        nothing = (math.nan, math.nan, math.nan, 0)
        return Metric("geoscore_mean", *nothing), Metric("mean_km", *nothing)
    known = ordered[:answered]
    edges = np.linspace(0, answered, (answered if answered <= _MOST_ROWS else _BINS) + 1).astype(np.int64)
    counts = np.append(np.diff(edges), every - answered).astype(np.float64)  # the last bin holds the missing answers
    points = geoscore(known)
    (bin_points, spread_points), (bin_km, spread_km) = (_binned(values, edges) for values in (points, known))
    score_draws, km_draws = [], []
    for part in np.array_split(np.arange(resamples), max(1, resamples // 250)):  # bounded memory
        drawn = rng.multinomial(n, counts / every, size=len(part))
        # The mean of many rows of one bin varies about the bin's own mean as a normal variable does.
        noise = rng.standard_normal((2, len(part)))
        score_draws.append((drawn @ bin_points + noise[0] * np.sqrt(drawn @ spread_points)) / n)
        answers = drawn[:, :-1].sum(axis=1)
        km = drawn @ bin_km + noise[1] * np.sqrt(drawn @ spread_km)
        km_draws.append(np.divide(km, answers, out=np.full(len(part), np.nan), where=answers > 0))
    score_interval = _interval(np.concatenate(score_draws))
    km = np.concatenate(km_draws)
    km = km[~np.isnan(km)]
    km_interval = _interval(km) if len(km) else (math.nan, math.nan)
    mean_km = float(known.mean()) if answered else math.nan
    return (
        Metric("geoscore_mean", float(points.sum() / every), *score_interval, n),
        Metric("mean_km", mean_km, *km_interval, answered * n // every),
    )


def _binned(values: Floats, edges: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Mean and variance of the values of each bin, and zeros for the bin of missing answers."""
    if not len(values):
        return np.zeros(1), np.zeros(1)
    sizes = np.diff(edges)
    means = np.add.reduceat(values, edges[:-1]) / sizes
    spread = np.add.reduceat((values - np.repeat(means, sizes)) ** 2, edges[:-1]) / sizes
    return np.append(means, 0.0), np.append(spread, 0.0)


def _interval(draws: Floats) -> tuple[float, float]:
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


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
    """Differences of the accuracies, of the median distance and of the mean GeoScore, with 95 % intervals.

    One row a query; where a side has several answers to each, in columns, a query counts with their mean.
    """
    first, second = (_far(values) for values in (first_km, second_km))
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} answers cannot be paired")
    if not len(first):
        return ()
    rng = np.random.default_rng(seed)
    n = len(first)
    metrics = [
        _shares(f"acc@{edge:g}km", (first <= edge).mean(axis=1), (second <= edge).mean(axis=1))
        for edge in THRESHOLDS_KM
    ]
    medians = float(np.median(first)), float(np.median(second))
    # Of more rows a sample is resampled, and its interval narrowed to the size of the whole.
    rows = rng.choice(n, MOST_ROWS, replace=False) if n > MOST_ROWS else np.arange(n)
    below, above = _median_interval(first[rows], second[rows], resamples, rng)
    narrower = math.sqrt(len(rows) / n)
    middle = medians[1] - medians[0]
    metrics.append(
        Difference("median_km", *medians, middle, middle + below * narrower, middle + above * narrower, None, n=n)
    )
    before, after = (geoscore(np.where(np.isinf(km), np.nan, km)).mean(axis=1) for km in (first, second))
    gain, firsts = after - before, float(before.mean())
    mean = float(gain.mean())
    if n <= MOST_ROWS:
        drawn = np.concatenate([gain[rows].mean(axis=1) for rows in resampled_rows(n, n, resamples, rng)])
        low, high = _interval(drawn)
    else:  # of that many rows the mean is normal, and so is the bootstrap's interval
        width = 1.96 * float(gain.std(ddof=1)) / math.sqrt(n)
        low, high = mean - width, mean + width
    metrics.append(Difference("geoscore_mean", firsts, firsts + mean, mean, low, high, None, n=n))
    return tuple(metrics)


def _shares(name: str, first: Floats, second: Floats) -> Difference:
    n = len(first)
    change = second - first
    difference = float(change.mean())
    # The interval of a difference of paired shares (Newcombe's plain form, with the 1/n of a continuity correction).
    spread = math.sqrt(max(0.0, float((change**2).mean()) - difference**2) / n)
    width = 1.96 * spread + 1 / n
    low, high = max(-1.0, difference - width), min(1.0, difference + width)
    values = float(first.mean()), float(second.mean()), difference, low, high
    if not np.isin(change, (-1, 0, 1)).all():  # McNemar's test is of queries that are right or wrong
        return Difference(name, *values, None, n=n)
    gained, lost = int((change > 0).sum()), int((change < 0).sum())
    from scipy.special import bdtr

    p = min(1.0, 2 * float(bdtr(min(gained, lost), gained + lost, 0.5)))  # exact, two-sided
    return Difference(name, *values, p, lost, gained, n)


def _median_interval(a: Floats, b: Floats, resamples: int, rng: np.random.Generator) -> tuple[float, float]:
    """The bootstrap interval of the difference of medians of paired rows, as distances from its middle."""
    parts = []
    for rows in resampled_rows(len(a), len(a), resamples, rng):
        with np.errstate(invalid="ignore"):  # two medians beyond every answer have no difference
            parts.append(np.median(b[rows], axis=(1, 2)) - np.median(a[rows], axis=(1, 2)))
    values = np.concatenate(parts)
    values = values[np.isfinite(values)]
    if not len(values):
        return math.nan, math.nan
    low, middle, high = np.quantile(values, [0.025, 0.5, 0.975])
    return float(low - middle), float(high - middle)


def resampled_rows(rows: int, n: int, resamples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Resamples of n rows, as many at once as fit in bounded memory."""
    at_once = max(1, 1_000_000 // n)
    for begin in range(0, resamples, at_once):
        yield rng.integers(0, rows, (min(at_once, resamples - begin), n))


def _far(values: ArrayLike) -> NDArray[np.float64]:
    """Distances with infinity for a missing answer: it is a miss, and farther than every other."""
    distance = np.asarray(values, dtype=np.float64)
    distance = distance if distance.ndim == 2 else distance.reshape(-1, 1)
    return np.where(np.isfinite(distance), distance, np.inf)
