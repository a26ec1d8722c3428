"""Pass@K and regimes of difficulty (SpotAgent 3.3.1): learnable where the policy sometimes succeeds, not always."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl

from schemas.settings.difficulty import DifficultySettings
from tasks.difficulty.attempts import attempt_identity, items, policy_of
from tasks.runtime.labelled import empty_rows
from tasks.runtime.runner import ColumnStage, Inputs, Row

Regime = Literal["learnable", "mastered", "intractable"]

# Names of the paper's levels; a threshold of one's own is named by its distance alone.
_LEVELS = {1.0: "Street", 25.0: "City", 200.0: "Region", 750.0: "Country"}


@dataclass(frozen=True)
class Difficulty:
    """Pass@K of one picture at each threshold, and what follows for training."""

    passes: tuple[int, ...]
    regimes: tuple[Regime, ...]
    phase: int | None  # 1: learnable at a phase I threshold; 2: only at a later one; None: nowhere

    @property
    def kept(self) -> bool:
        return self.phase is not None

    @property
    def reason(self) -> str:
        """Why a picture that is not kept is not."""
        kinds = set(self.regimes)
        if len(kinds) == 1:
            return str(next(iter(kinds)))
        # Never near enough for the small thresholds, always for the large ones: the group's rewards do not differ.
        return "all_or_nothing"


def regime(passed: int, k: int) -> Regime:
    """The regime of a picture by the number of its k trials that passed."""
    if not 0 <= passed <= k or k < 1:
        raise ValueError(f"{passed} of {k} trials cannot have passed")
    if passed == 0:
        return "intractable"
    return "mastered" if passed == k else "learnable"


def measure_difficulty(
    errors_km: Sequence[float | None], thresholds_km: Sequence[float], phase_one_km: Sequence[float]
) -> Difficulty:
    """Pass@K from the errors of K trials; None is a trial without a usable answer, which passes nowhere."""
    passes = tuple(sum(e is not None and e < limit for e in errors_km) for limit in thresholds_km)
    regimes = tuple(regime(passed, len(errors_km)) for passed in passes)
    learnable = {limit for limit, kind in zip(thresholds_km, regimes, strict=True) if kind == "learnable"}
    phase = None if not learnable else 1 if learnable & set(phase_one_km) else 2
    return Difficulty(passes, regimes, phase)


def table8(regimes: pl.DataFrame) -> pl.DataFrame:
    """SpotAgent's Table 8 from `regimes` rows: pictures mastered, intractable and kept at each threshold."""
    columns = {
        "threshold": pl.String,
        "threshold_km": pl.Float64,
        "total": pl.Int64,
        "mastered": pl.Int64,
        "mastered_pct": pl.Float64,
        "intractable": pl.Int64,
        "intractable_pct": pl.Float64,
        "filtered": pl.Int64,
        "filtered_pct": pl.Float64,
    }
    if regimes.is_empty():
        return pl.DataFrame(schema=columns)

    def count(kind: Regime) -> pl.Expr:
        return (pl.col("regimes") == kind).sum().cast(pl.Int64)

    def percent(name: str) -> pl.Expr:
        return (100 * pl.col(name) / pl.col("total")).round(2).alias(f"{name}_pct")

    return (
        regimes.select("threshold_km", "regimes")
        .explode("threshold_km", "regimes")
        .group_by("threshold_km")
        .agg(
            pl.len().cast(pl.Int64).alias("total"),
            count("mastered").alias("mastered"),
            count("intractable").alias("intractable"),
            count("learnable").alias("filtered"),
        )
        .sort("threshold_km")
        .with_columns(percent("mastered"), percent("intractable"), percent("filtered"))
        .with_columns(pl.col("threshold_km").map_elements(_level, return_dtype=pl.String).alias("threshold"))
        .select(*columns)
    )


def _level(threshold_km: float) -> str:
    name = _LEVELS.get(threshold_km)
    return f"{name} ({threshold_km:g}km)" if name else f"{threshold_km:g}km"


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
    difficulty = measure_difficulty(rows["error_km"].to_list(), settings.thresholds_km, settings.phase_one_km)
    rewards = np.array(rows["reward"].to_list(), dtype=np.float64)
    varies = bool(rewards.max() - rewards.min() > _SAME)
    learnable = difficulty.phase is not None
    reason = (
        difficulty.reason if not learnable else None if settings.keep == "learnable" or varies else "no_reward_variance"
    )
    return {
        "id": f"{image_id}|{policy}",
        "image_id": image_id,
        "snapshot_id": rows["snapshot_id"][0],
        "policy": policy,
        "k": settings.k,
        "threshold_km": list(settings.thresholds_km),
        "passes": list(difficulty.passes),
        "regimes": list(difficulty.regimes),
        "learnable": learnable,
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std(ddof=1)),
        "reward_varies": varies,
        "kept": reason is None,
        "reason": reason,
        "phase": difficulty.phase if reason is None else None,
    }


def identity(settings: DifficultySettings) -> dict[str, Any]:
    """The settings regimes depend on."""
    named = ("k", "thresholds_km", "phase_one_km", "keep", "policy", "endpoint")
    return {
        **attempt_identity(settings),
        **{name: value for name, value in settings.identity().items() if name in named},
    }


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
