"""Score a file of predictions: `geofix score FILE`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tasks.evaluate.prediction_file import has_levels, read_predictions
from tasks.geo.distance import distance_km
from tasks.reward.answer import Address, ParsedAnswer, ParseFailure, parse_answer, require_point
from tasks.reward.coordinates import check
from tasks.reward.levels import LEVELS, levels_by_rule
from tasks.reward.metrics import RESAMPLES, Metric, summarize

Answers = Sequence[ParsedAnswer | ParseFailure]

SWAP_KM = 500.0  # a median error under this is no sign of swapped columns
SWAP_GAIN = 5.0  # how many times nearer the swapped truth must be to be worth a warning


@dataclass(frozen=True)
class Report:
    """What a file of predictions is worth."""

    file: str
    rows: int
    scored_by: str  # answer, or lat+lon
    metrics: tuple[Metric, ...]
    parse_failures: dict[str, int] = field(default_factory=dict)  # by reason
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON would have it."""
        return {
            "file": self.file,
            "rows": self.rows,
            "scored_by": self.scored_by,
            "metrics": [metric.as_row() for metric in self.metrics],
            "parse_failures": dict(self.parse_failures),
            "warnings": list(self.warnings),
        }


def score_file(path: str | Path, resamples: int = RESAMPLES, seed: int = 0) -> Report:
    """Every metric of a predictions file, or `PredictionsError` saying which row and field is wrong and what to do."""
    table, warnings = read_predictions(Path(path))
    by_answer = "answer" in table.columns
    answers = [parse_answer(text) for text in table["answer"]] if by_answer else []
    lat, lon, reasons = _points_of_answers(answers) if by_answer else _points_of_columns(table)
    truth = table["true_lat"].to_numpy(), table["true_lon"].to_numpy()
    error_km = distance_km(lat, lon, *truth)
    levels = _levels(table, answers) if by_answer and has_levels(table) else None
    swapped = _swap_warning(lat, lon, *truth, error_km)
    counts: dict[str, int] = {}
    for reason in reasons:
        counts[reason] = counts.get(reason, 0) + 1
    return Report(
        file=str(path),
        rows=table.height,
        scored_by="answer" if by_answer else "lat+lon",
        metrics=tuple(summarize(error_km, levels, resamples, seed)),
        parse_failures=dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))),
        warnings=(*warnings, *swapped),
    )


def render_report(report: Report) -> str:
    """The report as a plain text table."""
    lines = [f"{report.file}: {report.rows:,} predictions, scored by {report.scored_by}", ""]
    lines.append(f"{'metric':<28}{'value':>12}   {'95 % interval':<23}{'n':>10}")
    for metric in report.metrics:
        value, low, high = (figure(metric.name, number) for number in (metric.value, metric.low, metric.high))
        lines.append(f"{metric.name:<28}{value:>12}   {f'{low} .. {high}':<23}{metric.n:>10,}")
    if report.parse_failures:
        lines += ["", "answers that could not be read (they count as misses):"]
        lines += [f"  {reason:<26}{count:>12,}" for reason, count in report.parse_failures.items()]
    lines += [f"warning: {warning}" for warning in report.warnings]
    return "\n".join(lines)


def figure(name: str, number: float) -> str:
    """A metric as a person reads it: kilometres, points or per cent."""
    if np.isnan(number):
        return "-"
    if name.endswith("_km"):
        return f"{number:,.2f}"
    return f"{number:,.1f}" if name.startswith("geoscore") else f"{100 * number:.2f} %"


def _points_of_answers(answers: Answers) -> tuple[np.ndarray, np.ndarray, list[str]]:
    lat, lon = np.full((2, len(answers)), np.nan)
    reasons = []
    for row, answer in enumerate(map(require_point, answers)):
        if isinstance(answer, ParseFailure):
            reasons.append(answer.reason)
        else:
            lat[row], lon[row] = answer.lat, answer.lon
    return lat, lon, reasons


def _points_of_columns(table: pl.DataFrame) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """A point that is missing or off the Earth is a miss with a reason; the row stays."""
    lat, lon = (table[name].to_numpy().astype(np.float64, copy=True) for name in ("lat", "lon"))
    bad = np.flatnonzero(~((np.abs(lat) <= 90) & (np.abs(lon) <= 180)))
    written = table[bad.tolist()].select("lat_text", "lon_text", "lat", "lon") if len(bad) else None
    reasons = []
    for row in written.iter_rows(named=True) if written is not None else ():
        reasons.append(_why(row["lat_text"], row["lat"], "lat") or _why(row["lon_text"], row["lon"], "lon") or "?")
    lat[bad] = lon[bad] = np.nan
    return lat, lon, reasons


def _why(text: str | None, value: float | None, axis: Any) -> str | None:
    if text is None or not text.strip():
        return f"missing_{axis}"
    if value is None:
        return "not_a_number"
    found = check(value, axis)
    return found if isinstance(found, str) else None


def _levels(table: pl.DataFrame, answers: Answers) -> dict[str, list[float]]:
    """Verdicts a level by rule, for the levels the file's truth names."""
    given = [level for level in LEVELS if level in table.columns]
    verdicts: dict[str, list[float]] = {level: [] for level in given}
    for answer, row in zip(answers, table.select(given).iter_rows(named=True), strict=True):
        truth = Address(row.get("country"), row.get("province_or_state"), row.get("city"))
        found = levels_by_rule(answer, truth)
        for level in given:
            right = found[level]
            verdicts[level].append(np.nan if right is None else float(right))
    return verdicts


def _swap_warning(
    lat: np.ndarray, lon: np.ndarray, true_lat: np.ndarray, true_lon: np.ndarray, error_km: np.ndarray
) -> list[str]:
    """A warning when the truth with lat and lon exchanged is far nearer to the answers."""
    usable = ~np.isnan(error_km) & (np.abs(true_lon) <= 90)
    if usable.sum() < 10:
        return []
    straight = float(np.median(error_km[usable]))
    swapped = float(np.median(distance_km(lat[usable], lon[usable], true_lon[usable], true_lat[usable])))
    if straight < SWAP_KM or swapped * SWAP_GAIN > straight:
        return []
    return [
        f"are lat and lon swapped, in the answers or in true_lat / true_lon? As given the median error is "
        f"{straight:,.0f} km, with true_lat and true_lon exchanged it would be {swapped:,.0f} km"
    ]
