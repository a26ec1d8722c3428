"""What answers rest on: the accuracy that is lost when one kind of cue is covered, picture by picture."""

import json

import numpy as np
import polars as pl

from schemas.settings.evaluate import EvaluateSettings
from tasks.evaluate.scores import answered_evaluations, errors, identity
from tasks.reward.metrics import compare
from tasks.runtime.labelled import empty_rows
from tasks.runtime.runner import ColumnStage, Inputs, Row

WHOLE, WITHOUT = "whole", "without "
SHOWN = ("acc@25km", "acc@200km", "acc@750km", "geoscore_mean")
EVERY, WITH_CUE = "all pictures", "pictures with the cue"
_REJECTS = {"id": pl.String, "reason": pl.String, "evidence_json": pl.String}


def cue_losses(inputs: Inputs, settings: EvaluateSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Of each policy and cue: accuracy on the whole pictures, without the cue, and the paired difference."""
    told = inputs.frame("deliberations").filter(pl.col("method").str.starts_with(WITHOUT))
    boxes = {
        (evaluation, image): bool(json.loads(text or "{}").get("boxes"))
        for evaluation, image, text in told.select("evaluation_id", "image_id", "answers_json").iter_rows()
    }
    evaluations = answered_evaluations(inputs, settings)[0]
    by_policy = {rows["policy"][0]: (name, rows) for name, rows in evaluations.items()}
    kept: list[Row] = []
    for policy, (evaluation, rows) in by_policy.items():
        base_policy, _, cue = policy.rpartition(f" {WITHOUT}")
        if f"{base_policy} {WHOLE}" not in by_policy or (evaluation, rows["image_id"][0]) not in boxes:
            continue
        base_id, base = by_policy[f"{base_policy} {WHOLE}"]
        has_cue = np.array([boxes.get((evaluation, image), False) for image in rows["image_id"]])
        for on, mine in ((EVERY, np.ones(rows.height, dtype=bool)), (WITH_CUE, has_cue)):
            for pair in compare(errors(base)[mine], errors(rows)[mine], settings.resamples, settings.seed):
                if pair.metric not in SHOWN:
                    continue
                row = pair.as_row()
                kept.append(
                    {
                        "id": f"{evaluation}|{inputs.snapshot_id}|{on}|{pair.metric}",
                        **{"evaluation_id": evaluation, "snapshot_id": inputs.snapshot_id, "whole_id": base_id},
                        **{"policy": base_policy, "cue": cue, "pictures": on, "metric": pair.metric},
                        **{"whole": row["first"], "without": row["second"], "lost": 0.0 - pair.difference},
                        **{"low": -pair.high, "high": -pair.low, "p": row["p"], "n": pair.n},
                    }
                )
    empty = empty_rows("cue_losses")
    return pl.DataFrame(kept, schema=empty.schema) if kept else empty, pl.DataFrame(schema=_REJECTS)


STAGE = ColumnStage(
    name="evaluate.cues",
    reads=("predictions", "deliberations", "labels", "images", "models", "benchmarks"),
    writes=("cue_losses",),
    compute=cue_losses,
    identity=identity,
    snapshot=True,
    keeps_history=True,
)
