"""The stage that turns a policy's answers into metrics with intervals."""

import json
from typing import Any

import numpy as np
import polars as pl

from schemas.settings.evaluate import EvaluateSettings
from tasks.evaluate.benchmark import answering, items
from tasks.geo.distance import distance_km
from tasks.reward.answer import Address, parse_answer
from tasks.reward.levels import LEVELS, levels_by_rule
from tasks.reward.metrics import summarize
from tasks.runtime.runner import ColumnStage, Inputs, Row

_KEPT = {
    "id": pl.String,
    "evaluation_id": pl.String,
    "snapshot_id": pl.String,
    "metric": pl.String,
    "policy": pl.String,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "n": pl.Int64,
}
ALWAYS = "parse_failure_rate"  # a metric that every evaluation has
_REJECTS = {"id": pl.String, "reason": pl.String, "evidence_json": pl.String}


def compute(inputs: Inputs, settings: EvaluateSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Every metric of every evaluation whose pictures are all answered.

    An evaluation with pictures still to ask has no score: over the answered ones alone the denominator would be
    another. It is rejected as `incomplete` until a later run has the rest. Scores belong to the snapshot whose pictures
    were answered; those of other snapshots and settings stand.
    """
    snapshot = inputs.snapshot_id
    asked = items(inputs, settings).select("evaluation_id", "policy", "image_id", "lat", "lon")
    answered = inputs.frame("predictions").select(
        "evaluation_id", "image_id", "answer", pl.col("lat").alias("said_lat"), pl.col("lon").alias("said_lon")
    )
    names = inputs.frame("labels").select("image_id", "country", "region", "city")
    table = asked.join(answered.with_columns(found=True), on=["evaluation_id", "image_id"], how="left")
    table = table.join(names, on="image_id", how="left").sort("evaluation_id", "image_id")
    kept: list[Row] = []
    rejects: list[Row] = []
    for (evaluation,), rows in table.group_by("evaluation_id", maintain_order=True):
        have = rows["found"].count()
        if have < rows.height:
            evidence = json.dumps({"policy": rows["policy"][0], "pictures": rows.height, "answered": have})
            # Under the id of a score, so that the reject ends when that score is made.
            reject_id = f"{evaluation}|{snapshot}|{ALWAYS}"
            rejects.append({"id": reject_id, "reason": "incomplete", "evidence_json": evidence})
            continue
        for metric in _metrics(rows, settings):
            name = metric.pop("name")
            head = {"evaluation_id": evaluation, "snapshot_id": snapshot, "metric": name}
            kept.append({"id": f"{evaluation}|{snapshot}|{name}", **head, "policy": rows["policy"][0], **metric})
    return pl.DataFrame(kept, schema=_KEPT), pl.DataFrame(rejects, schema=_REJECTS)


def _metrics(rows: pl.DataFrame, settings: EvaluateSettings) -> list[dict[str, Any]]:
    error_km = distance_km(*(rows[name].to_numpy() for name in ("said_lat", "said_lon", "lat", "lon")))
    verdicts: dict[str, list[float]] = {level: [] for level in LEVELS}
    for row in rows.select("answer", "country", "region", "city").iter_rows(named=True):
        truth = Address(row["country"], row["region"], row["city"])
        for level, right in levels_by_rule(parse_answer(row["answer"]), truth).items():
            verdicts[level].append(np.nan if right is None else float(right))
    return [metric.as_row() for metric in summarize(error_km, verdicts, settings.resamples, settings.seed)]


def identity(settings: EvaluateSettings) -> dict[str, Any]:
    """The settings scores depend on, beside the answers themselves."""
    return {**answering(settings), "resamples": settings.resamples, "seed": settings.seed}


STAGE = ColumnStage(
    name="evaluate.scores",
    reads=("predictions", "labels", "images", "models"),
    writes=("scores",),
    compute=compute,
    identity=identity,
    snapshot=True,
    keeps_history=True,
)
