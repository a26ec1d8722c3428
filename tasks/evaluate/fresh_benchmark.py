"""A benchmark that stays fresh: the pictures of a month that are newer than models' cut-offs and far from all training.

The set of a month is drawn once from the benchmark split of an approved snapshot and signed, then it stays as it is.
Months do not overlap: a set holds what was captured since the cut-off, or since the end of the set before. A model is
later scored on all months (`score_slices`, by month). On months that its training data could hold it may remember; a
gap to the months after its cut-off shows that.
"""

import json
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

from schemas.errors import InputError
from schemas.settings.benchmark import BenchmarkSettings
from tasks.agent.attempt import TRAINED
from tasks.geo.cell_split import cell_number, distance_to_cells_km
from tasks.imaging.alike import look_alikes
from tasks.lake.signing import public_key, sign
from tasks.runtime.labelled import ON_THE_GROUND, empty_rows
from tasks.runtime.runner import ColumnStage, Inputs, Row, digest

FORMAT = "geofix-benchmark"
DAY = timedelta(days=1)
KNOWN, NEAR_CELL, UNCHECKED, NOT_DRAWN = "training_picture", "near_training_cell", "not_fingerprinted", "not_drawn"
_REJECTS = {"id": pl.String, "reason": pl.String, "evidence_json": pl.String}
_TRAINED_ON = {"image_id": pl.String, "sha256": pl.String, "lat": pl.Float64, "lon": pl.Float64}
_DIGITS = 1  # of a distance in kilometres


@dataclass(frozen=True)
class Window:
    """The days whose pictures belong to a month: after the first of these days, up to the second."""

    month: str
    after: date
    until: date


def last_month(today: date) -> str:
    """The last month that is over."""
    return f"{today.replace(day=1) - DAY:%Y-%m}"


def month_end(month: str) -> date:
    """The last day of a month."""
    first = date.fromisoformat(f"{month}-01")
    return (first + 31 * DAY).replace(day=1) - DAY


def model_cutoffs(settings: BenchmarkSettings, models: pl.DataFrame) -> dict[str, date]:
    """The cut-off of each model that is requested; a trained one has that of the base it began with.

    What it was trained on in this lake is kept away by cells and copies, not by dates.
    """
    bases = {f"{TRAINED}{model_id}": base for model_id, base in models.select("model_id", "base").iter_rows()}
    cutoffs = dict(settings.cutoffs)
    for name in settings.models:
        base = bases.get(name, name)
        if name not in cutoffs and base not in cutoffs:
            raise InputError(
                f"benchmark.models: no cut-off of '{base}' is known; give the last day of its training data, which its "
                f"card names: --set 'benchmark.cutoffs={{{base}: 2025-06-30}}'"
            )
        cutoffs.setdefault(name, cutoffs.get(base, date.min))
    return cutoffs


def window_of(settings: BenchmarkSettings, cutoffs: dict[str, date], drawn: pl.DataFrame, today: date) -> Window:
    """The days of the month to draw, or an InputError that says why they cannot be drawn."""
    month = settings.month or last_month(today)
    until = month_end(month)
    if until >= today:
        raise InputError(f"benchmark.month: {month} is not over yet; {last_month(today)} is the last one that is")
    known = [cutoffs[name] for name in settings.models] + ([settings.cutoff] if settings.cutoff else [])
    if not known:
        raise InputError(
            "benchmark.cutoff: which pictures are too old? Give the last day of a model's training data, as "
            "--set benchmark.cutoff=2025-06-30, or name models (benchmark.models) and their days (benchmark.cutoffs)"
        )
    later = drawn.filter(pl.col("month") > month).sort("month")
    if later.height:
        raise InputError(f"benchmark.month: {later['month'][-1]} is drawn already, and months are drawn in order")
    before = [moment.date() - DAY for moment in drawn.filter(pl.col("month") < month)["captured_until"]]
    after = max([*known, *before])
    if after >= until:
        raise InputError(f"benchmark.cutoff: {after} is not before the end of {month}; such pictures may be known")
    return Window(month, after, until)


def training_pictures(inputs: Inputs) -> pl.DataFrame:
    """All pictures that a model was or may have been trained on or chosen by: image_id, sha256, lat, lon.

    Those of the splits train and validation of every approved snapshot, and every training row there ever was.
    """
    columns = list(_TRAINED_ON)
    parts = [_ever(inputs, "samples", columns)]
    approved = inputs.frame("snapshots").filter(pl.col("status") == "approved")
    for version in {json.loads(text)["labels"] for text in approved["table_versions_json"]}:
        labels = inputs.lake.scan("labels", version).filter(
            pl.col("tombstone").is_null() & (pl.col("split") != "benchmark")
        )
        parts.append(inputs.lake.collect("labels", labels.select(columns)))
    return pl.concat(
        [part.select(pl.col(name).cast(kind) for name, kind in _TRAINED_ON.items()) for part in parts]
    ).unique(maintain_order=True)


def _ever(inputs: Inputs, table: str, columns: list[str]) -> pl.DataFrame:
    """Every version of every row, ended ones too."""
    rows = inputs.lake.scan(table, None if inputs.versions[table] < 0 else inputs.versions[table])
    return inputs.lake.collect(table, rows.select(columns)).unique(columns[:2], maintain_order=True)


def candidates(inputs: Inputs) -> pl.DataFrame:
    """The pictures of the benchmark split that policies answer, with the day of their capture."""
    images = ON_THE_GROUND.apply(inputs.frame("images")).select("image_id", taken=pl.col("captured_at").dt.date())
    labels = inputs.frame("labels").filter(pl.col("split") == "benchmark").select(*_TRAINED_ON)
    return labels.join(images, on="image_id", how="inner").sort("sha256", "image_id")


def compute(inputs: Inputs, settings: BenchmarkSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The month's row, unless it stands already or nothing is left; and a reject for each other picture of its days."""
    drawn = inputs.frame("benchmarks")
    today = datetime.now(UTC).date()
    drawn_before = drawn.filter(pl.col("month") == (settings.month or last_month(today)))
    if drawn_before.height:  # a killed run may have left it without its rejects
        stored = drawn_before.select(empty_rows("benchmarks").drop("id").columns).with_columns(id="month")
        return stored, _reject_rows(stored["month"][0], json.loads(stored["rejected_json"][0] or "[]"))
    cutoffs = model_cutoffs(settings, inputs.frame("models"))
    window = window_of(settings, cutoffs, drawn, today)
    pictures = candidates(inputs)
    taken = pl.col("taken")
    mine = pictures.filter(taken.is_between(window.after, window.until, closed="right"))
    rejected, proof, km = judge_candidates(mine, inputs, settings)
    kept = mine.filter(~pl.col("image_id").is_in([reject["image_id"] for reject in rejected]))
    if not kept.height:
        return empty_rows("benchmarks"), _reject_rows(window.month, rejected)
    left_out = {
        "no_capture_time": pictures["taken"].null_count(),
        "captured_before": pictures.filter(taken <= window.after).height,
        "captured_after_the_month": pictures.filter(taken > window.until).height,
    }
    reasons = Counter(reject["reason"] for reject in rejected)
    manifest = {
        **{"format": FORMAT, "version": 1, "month": window.month, "snapshot_id": inputs.snapshot_id},
        **{"captured_after": window.after, "captured_until": window.until, "cutoffs": cutoffs},
        "counts": {
            **{"benchmark_split": pictures.height, "other_days": left_out, "in": mine.height},
            **{"kept": kept.height, "rejected": dict(sorted(reasons.items()))},
        },
        "proof": {
            **proof,
            "nearest_training_cell_km": min(
                filter(None, (km[image_id] for image_id in kept["image_id"])), default=None
            ),
        },
        "pictures": [
            {
                **{"image_id": row["image_id"], "sha256": row["sha256"], "captured_on": row["taken"]},
                **{"truth": truth_digest(row["lat"], row["lon"]), "training_cell_km": km[row["image_id"]]},
            }
            for row in kept.to_dicts()
        ],
    }
    text = json.dumps(manifest, ensure_ascii=False, sort_keys=True, indent=1, default=str)
    row = {
        **{"id": window.month, "month": window.month, "snapshot_id": inputs.snapshot_id, "pictures": kept.height},
        **{"captured_after": _end_of(window.after), "captured_until": _end_of(window.until)},
        **{"manifest_json": text, "rejected_json": json.dumps(rejected, ensure_ascii=False)},
        **{"signature": sign(inputs.lake, text), "public_key": public_key(inputs.lake)},
    }
    frame = pl.DataFrame([row]).select(empty_rows("benchmarks").columns)
    return frame, _reject_rows(window.month, rejected)


def judge_candidates(
    mine: pl.DataFrame, inputs: Inputs, settings: BenchmarkSettings
) -> tuple[list[Row], dict[str, Any], dict[str, float | None]]:
    """Pictures that must not be in the set (image_id, reason, evidence), the proof, and each one's distance."""
    known = training_pictures(inputs)
    ids, bytes_ = set(known["image_id"]), set(known["sha256"])
    placed = known.drop_nulls(["lat", "lon"])
    cells = np.unique(cell_number(placed["lat"].to_numpy(), placed["lon"].to_numpy()))
    far = distance_to_cells_km(mine["lat"].to_numpy(), mine["lon"].to_numpy(), cells)
    km = {
        image_id: round(distance, _DIGITS) if np.isfinite(distance) else None
        for image_id, distance in zip(mine["image_id"], far.tolist(), strict=True)
    }
    marks = _ever(inputs, "fingerprints", _MARKS)
    of_training = known.unique(["image_id", "sha256"]).join(marks, on=["image_id", "sha256"])
    of_mine = mine.select("image_id", "sha256").join(marks, on=["image_id", "sha256"])
    copies = copies_of(of_mine, of_training, settings)
    marked, rejected, left = set(of_mine["image_id"]), [], 0
    for row in mine.to_dicts():
        image_id, distance = row["image_id"], km[row["image_id"]]
        reason, evidence = None, {}
        if image_id in ids or row["sha256"] in bytes_:
            reason = KNOWN
        elif distance is not None and distance < settings.least_km:
            reason, evidence = NEAR_CELL, {"training_cell_km": distance}
        elif image_id not in marked:
            reason = UNCHECKED
        elif image_id in copies:
            reason, evidence = copies[image_id]
        elif settings.pictures is not None and left >= settings.pictures:
            reason = NOT_DRAWN
        else:
            left += 1
            continue
        rejected.append({"image_id": image_id, "reason": reason, "evidence": evidence})
    proof = {
        **{"training_pictures": len(ids), "training_cells": len(cells), "least_km": settings.least_km},
        "training_snapshots": inputs.frame("snapshots").filter(pl.col("status") == "approved").height,
        "training_rows": _ever(inputs, "samples", ["sample_id", "image_id"]).height,
        **{"copies_looked_for_among": of_training["image_id"].n_unique(), "copies_found": len(copies)},
    }
    return rejected, proof, km


_MARKS = [
    *("image_id", "sha256", "phash", "phash_mirrored", "embedding"),
    *("patches", "patches_mirrored", "patch_places", "thumbnail", "aspect"),
]


def copies_of(
    mine: pl.DataFrame, known: pl.DataFrame, settings: BenchmarkSettings
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Of the first pictures those that look like one of the second: reason and evidence."""
    own = set(mine["image_id"])
    both = pl.concat([mine.select(_MARKS), known.filter(~pl.col("image_id").is_in(list(own))).select(_MARKS)])
    copies: dict[str, tuple[str, dict[str, Any]]] = {}
    for pair in look_alikes(both.unique("image_id", maintain_order=True), settings.duplicates):
        for own_id, other in ((pair.one, pair.two), (pair.two, pair.one)):
            if own_id in own and other not in own:
                copies.setdefault(own_id, (pair.reason, {"training_picture": other, **pair.evidence}))
    return copies


def truth_digest(lat: float, lon: float) -> str:
    """Pins where a picture was taken without telling it."""
    return digest("truth", lat, lon)


def months_of(benchmarks: pl.DataFrame) -> pl.DataFrame:
    """image_id and month of every picture of every month."""
    rows = [
        (picture["image_id"], month)
        for month, text in benchmarks.select("month", "manifest_json").iter_rows()
        for picture in json.loads(text)["pictures"]
    ]
    return pl.DataFrame(rows, {"image_id": pl.String, "month": pl.String}, orient="row")


def _end_of(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC) + DAY


def _reject_rows(month: str, rejected: list[Row]) -> pl.DataFrame:
    rows = [
        {
            "id": f"{month}|{reject['image_id']}",
            "reason": reject["reason"],
            "evidence_json": json.dumps(reject["evidence"]),
        }
        for reject in rejected
    ]
    return pl.DataFrame(rows, schema=_REJECTS)


STAGE = ColumnStage(
    name="evaluate.benchmark",
    section="benchmark",
    reads=("labels", "images", "samples", "models", "snapshots", "fingerprints", "benchmarks"),
    writes=("benchmarks",),
    compute=compute,
    identity=lambda settings: {},  # a month that stands is never made anew
    snapshot=True,
    keeps_history=True,
)
