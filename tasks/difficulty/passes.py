"""The stage that makes Pass@K and regimes of the attempts of one policy."""

from typing import Any

import numpy as np
import polars as pl

from schemas.settings.difficulty import DifficultySettings
from tasks.difficulty.attempts import items, policy_of, trying
from tasks.difficulty.regime import measure
from tasks.runtime.labelled import empty_rows
from tasks.runtime.runner import ColumnStage, Inputs, Row

_REJECTS = {"id": pl.String, "reason": pl.String, "evidence_json": pl.String}
_SAME = 1e-9  # rewards closer than this are one reward


def compute(inputs: Inputs, settings: DifficultySettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """One row a picture of which all K trials are made; the first K where there are more."""
    policy, tools = policy_of(inputs, settings), ", ".join(settings.tools) or "none"
    wanted = items(inputs, settings).select("image_id", "trial", "snapshot_id")
    tried = inputs.frame("attempts").filter((pl.col("policy") == policy) & (pl.col("tools") == tools))
    mine = wanted.join(tried.select("image_id", "trial", "error_km", "reward"), on=["image_id", "trial"])
    kept: list[Row] = []
    rejects: list[Row] = []
    for (image_id,), rows in mine.sort("image_id", "trial").group_by("image_id", maintain_order=True):
        if rows.height < settings.k:
            evidence = f'{{"trials": {rows.height}, "k": {settings.k}}}'
            rejects.append({"id": f"{image_id}|{policy}", "reason": "trials_missing", "evidence_json": evidence})
        else:
            kept.append(_row(str(image_id), policy, rows, settings))
    frame = pl.DataFrame(kept, infer_schema_length=None) if kept else empty_rows("regimes")
    return frame, pl.DataFrame(rejects, schema=_REJECTS)


def _row(image_id: str, policy: str, rows: pl.DataFrame, settings: DifficultySettings) -> Row:
    found = measure(rows["error_km"].to_list(), settings.thresholds_km, settings.phase_one_km)
    rewards = np.array(rows["reward"].to_list(), dtype=np.float64)
    varies = bool(rewards.max() - rewards.min() > _SAME)
    learnable = found.phase is not None
    reason = found.reason if not learnable else None if varies or settings.keep == "learnable" else "no_reward_variance"
    return {
        "id": f"{image_id}|{policy}",
        "image_id": image_id,
        "snapshot_id": rows["snapshot_id"][0],
        "policy": policy,
        "k": settings.k,
        "threshold_km": list(settings.thresholds_km),
        "passes": list(found.passes),
        "regimes": list(found.regimes),
        "learnable": learnable,
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std(ddof=1)),
        "reward_varies": varies,
        "kept": reason is None,
        "reason": reason,
        "phase": found.phase if reason is None else None,
    }


def identity(settings: DifficultySettings) -> dict[str, Any]:
    """The settings regimes depend on."""
    named = ("k", "thresholds_km", "phase_one_km", "keep", "policy", "endpoint")
    return {**trying(settings), **{name: value for name, value in settings.identity().items() if name in named}}


STAGE = ColumnStage(
    name="difficulty.regimes",
    reads=("attempts", "labels", "images", "models"),
    writes=("regimes",),
    compute=compute,
    identity=identity,
    snapshot=True,
    keeps_history=True,  # regimes of other policies stand; each row names its own
    unhashed=("snapshot_id",),
)
