"""Score a file of anybody's predictions: every metric with its interval, by slices, and beside another file."""

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from schemas.errors import InputError
from tasks.evaluate.prediction_file import PredictionsError, has_levels, read_predictions
from tasks.evaluate.slices import slice_values
from tasks.geo.distance import distance_km, swapped_km
from tasks.reward.answer import Address, ParsedAnswer, ParseFailure, parse_answer, require_point
from tasks.reward.coordinates import LIMIT, Axis, check_degrees
from tasks.reward.levels import LEVELS, levels_by_rule
from tasks.reward.metrics import RESAMPLES, Difference, Metric, compare, geoscore, summarize

Answers = Sequence[ParsedAnswer | ParseFailure]

SWAP_KM = 500.0  # a median error under this is not a sign of swapped columns
SWAP_GAIN = 5.0  # how many times nearer the swapped truth must be to be worth a warning
_ENOUGH_FOR_SWAP = 20_000  # rows that show whether columns are swapped; of more an even part is looked at
MANY_ANSWERS = 20_000  # from here on answers are parsed in several processes
MOST_SLICES = 300


@dataclass(frozen=True)
class Report:
    """What a file of predictions is worth."""

    file: str
    rows: int
    scored_by: str  # answer, or lat+lon
    metrics: tuple[Metric, ...]
    parse_failures: dict[str, int] = field(default_factory=dict)  # by reason
    warnings: tuple[str, ...] = ()
    slices: dict[str, tuple[Metric, ...]] = field(default_factory=dict)
    # One row a prediction: id, lat, lon, true_lat, true_lon, error_km, geoscore, parse_error, and the levels judged.
    table: pl.DataFrame = field(default_factory=pl.DataFrame, compare=False)

    @property
    def unread(self) -> pl.DataFrame:
        """The predictions that could not be read: id, parse_error, and the answer as written."""
        wanted = [name for name in ("id", "parse_error", "answer") if name in self.table.columns]
        return self.table.filter(pl.col("parse_error").is_not_null()).select(wanted)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON would have it."""
        return {
            "file": self.file,
            "rows": self.rows,
            "scored_by": self.scored_by,
            "metrics": [metric.as_row() for metric in self.metrics],
            "parse_failures": dict(self.parse_failures),
            "unread": self.unread.head(100).to_dicts(),
            "warnings": list(self.warnings),
            "by": {name: [metric.as_row() for metric in metrics] for name, metrics in self.slices.items()},
        }


def score_file(
    path: str | Path,
    resamples: int = RESAMPLES,
    seed: int = 0,
    columns: Mapping[str, str] | None = None,
    by: str | None = None,
) -> Report:
    """Every metric of a predictions file, or `PredictionsError` saying which row and field is wrong and what to do."""
    table, warnings = read_predictions(Path(path), columns)
    by_answer = "answer" in table.columns
    answers = _parsed(table["answer"].to_list()) if by_answer else []
    lat, lon, reasons = _points_of_answers(answers) if by_answer else _points_of_columns(table)
    truth = table["true_lat"].to_numpy(), table["true_lon"].to_numpy()
    error_km = distance_km(lat, lon, *truth)
    levels = _levels(table, answers) if by_answer and has_levels(table) else None
    swapped = _swap_warning(lat, lon, *truth, error_km)
    counts = reasons.drop_nulls().value_counts().rows()
    scored = table.select("id", *(["answer"] if by_answer else [])).with_columns(
        pl.Series("lat", lat).fill_nan(None),
        pl.Series("lon", lon).fill_nan(None),
        table["true_lat"],
        table["true_lon"],
        pl.Series("error_km", error_km).fill_nan(None),
        pl.Series("geoscore", geoscore(error_km)),
        reasons,
        *(pl.Series(f"{level}_right", verdict).fill_nan(None) for level, verdict in (levels or {}).items()),
    )
    return Report(
        file=str(path),
        rows=table.height,
        scored_by="answer" if by_answer else "lat+lon",
        metrics=tuple(summarize(error_km, levels, resamples, seed)),
        parse_failures=dict(sorted(counts, key=lambda pair: (-pair[1], pair[0]))),
        warnings=(*warnings, *swapped),
        slices=_slices(path, table, error_km, levels, by, resamples, seed) if by else {},
        table=scored,
    )


def compare_reports(first: Report, second: Report, resamples: int = RESAMPLES, seed: int = 0) -> tuple[Difference, ...]:
    """Paired differences over the predictions that both files have, by id."""
    wanted = ("id", "error_km", "true_lat", "true_lon")
    both = first.table.select(wanted).join(second.table.select(wanted), on="id", suffix="_second")
    if both.is_empty():
        raise PredictionsError(f"{first.file} and {second.file} have no id in common: they cannot be compared")
    moved = both.filter(
        ((pl.col("true_lat") - pl.col("true_lat_second")).abs() > 1e-6)
        | ((pl.col("true_lon") - pl.col("true_lon_second")).abs() > 1e-6)
    )
    if moved.height:
        raise PredictionsError(
            f"{second.file}: id {moved['id'][0]!r} has another true position than in {first.file} "
            f"({moved.height:,} such rows): compare predictions of the same pictures"
        )
    a, b = (both[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in ("error_km", "error_km_second"))
    return compare(a, b, resamples, seed)


def write_rows(reports: Sequence[Report], path: Path) -> None:
    """Every prediction with its error, as CSV or Parquet by the name; of several files with a column `file`."""
    tables = [
        report.table if len(reports) == 1 else report.table.select(pl.lit(report.file).alias("file"), pl.all())
        for report in reports
    ]
    table = pl.concat(tables, how="diagonal")
    kind = path.suffix.casefold()
    if kind not in (".csv", ".parquet", ".pq"):
        raise InputError(f"--rows {path}: the name must end in .csv or .parquet")
    if not path.parent.is_dir():
        raise InputError(f"--rows {path}: there is no folder {path.parent}")
    table.write_csv(path) if kind == ".csv" else table.write_parquet(path)


def _slices(
    path: str | Path,
    table: pl.DataFrame,
    error_km: np.ndarray,
    levels: Mapping[str, Sequence[float]] | None,
    by: str,
    resamples: int,
    seed: int,
) -> dict[str, tuple[Metric, ...]]:
    values = slice_values(table, by, str(path)).fill_null("(none)")
    names = values.value_counts(sort=True).get_column(values.name).head(MOST_SLICES).to_list()
    slices: dict[str, tuple[Metric, ...]] = {}
    for name in names:
        rows = np.flatnonzero((values == name).to_numpy())
        judged = {level: np.asarray(verdict)[rows] for level, verdict in (levels or {}).items()}
        slices[str(name)] = tuple(summarize(error_km[rows], judged, resamples, seed))
    return slices


def _parsed(texts: list[str | None]) -> list[ParsedAnswer | ParseFailure]:
    """The answers read, each distinct text once; many of them in as many processes as there are cores."""
    distinct = list(dict.fromkeys(texts))
    if len(distinct) < MANY_ANSWERS:
        known = {text: parse_answer(text) for text in distinct}
    else:
        with ProcessPoolExecutor(os.cpu_count() or 1) as pool:
            known = dict(zip(distinct, pool.map(parse_answer, distinct, chunksize=2000), strict=True))
    return [known[text] for text in texts]


def _points_of_answers(answers: Answers) -> tuple[np.ndarray, np.ndarray, pl.Series]:
    lat, lon = np.full((2, len(answers)), np.nan)
    reasons: list[str | None] = [None] * len(answers)
    for row, answer in enumerate(map(require_point, answers)):
        if isinstance(answer, ParseFailure):
            reasons[row] = answer.reason
        else:
            lat[row], lon[row] = answer.lat, answer.lon
    return lat, lon, pl.Series("parse_error", reasons, dtype=pl.String)


def _points_of_columns(table: pl.DataFrame) -> tuple[np.ndarray, np.ndarray, pl.Series]:
    """A point that is missing or off the Earth is a miss with a reason; the row stays."""
    lat, lon = (table[name].to_numpy().astype(np.float64, copy=True) for name in ("lat", "lon"))
    bad = np.flatnonzero(~((np.abs(lat) <= 90) & (np.abs(lon) <= 180)))
    named = [name for name in ("lat_text", "lon_text", "lat", "lon") if name in table.columns]
    errors = (
        table.select(named)[bad].select(pl.coalesce(_why("lat", named), _why("lon", named), pl.lit("?"))).to_series()
    )
    reasons = pl.Series("parse_error", [None], dtype=pl.String).new_from_index(0, len(lat)).scatter(bad, errors)
    lat[bad] = lon[bad] = np.nan
    return lat, lon, reasons


def _why(axis: Axis, named: Sequence[str]) -> pl.Expr:
    """Why a row has no such coordinate: null if it has one."""
    value = pl.col(axis)
    text = pl.col(f"{axis}_text").str.strip_chars() if f"{axis}_text" in named else value.cast(pl.String)
    return (
        pl.when(text.is_null() | (text == ""))
        .then(pl.lit(f"missing_{axis}"))
        .when(value.is_null())
        .then(pl.lit("not_a_number"))
        .when(~value.is_finite())
        .then(pl.lit(check_degrees(math.nan, axis)))
        .when(value.abs() > LIMIT[axis])
        .then(pl.lit(check_degrees(2 * LIMIT[axis], axis)))
    )


def _levels(table: pl.DataFrame, answers: Answers) -> dict[str, list[float]]:
    """Verdicts a level by rule, for the levels the file's truth names."""
    levels = [level for level in LEVELS if level in table.columns]
    verdicts: dict[str, list[float]] = {level: [] for level in levels}
    rows = table.select(*levels, "true_lat", "true_lon").iter_rows(named=True)
    for answer, row in zip(answers, rows, strict=True):
        truth = Address(row.get("country"), row.get("province_or_state"), row.get("city"))
        right_levels = levels_by_rule(answer, truth, point=(row["true_lat"], row["true_lon"]))
        for level in levels:
            right = right_levels[level]
            verdicts[level].append(np.nan if right is None else float(right))
    return verdicts


def _swap_warning(
    lat: np.ndarray, lon: np.ndarray, true_lat: np.ndarray, true_lon: np.ndarray, error_km: np.ndarray
) -> list[str]:
    """A warning when the truth with lat and lon exchanged is far nearer to the answers."""
    usable = np.flatnonzero(~np.isnan(error_km) & (np.abs(true_lon) <= 90))
    if len(usable) < 10:
        return []
    usable = usable[:: max(1, len(usable) // _ENOUGH_FOR_SWAP)]
    straight = float(np.median(error_km[usable]))
    swapped = float(np.median(swapped_km(true_lat[usable], true_lon[usable], lat[usable], lon[usable])))
    if straight < SWAP_KM or swapped * SWAP_GAIN > straight:
        return []
    return [
        f"are lat and lon swapped, in the answers or in true_lat / true_lon? As given the median error is "
        f"{straight:,.0f} km, with true_lat and true_lon exchanged it would be {swapped:,.0f} km"
    ]
