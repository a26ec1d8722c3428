"""Split conformal radii: "within r km with 90 %" for every answer, calibrated on the policy's validation answers.

With n errors of exchangeable answers, the ceil((n + 1) share)-th smallest is passed by the next answer's error with a
probability of at most 1 - share, whatever their distribution (Vovk et al. 2005; Lei et al. 2018). How many of the
answers to come it covers is luck of these n: 900 give 88 to 92 % at 90 %. Groups of answers are calibrated apart where
each has enough (Mondrian), the others together; where all are too few, there is no radius, and that is what is said.
Groups are made of what is known without the truth: the kind of picture, and the continent of the point that is
answered. Where several attempts were made at every picture, errors are taken by their spread, and the radius is narrow
where attempts agree.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from schemas.settings.evaluate import EvaluateSettings, RadiusSettings
from tasks.evaluate.answers import benchmark_pictures, on_validation, single_evaluations
from tasks.evaluate.ensembles import method_evaluations
from tasks.evaluate.slices import continents
from tasks.geo.distance import distance_km
from tasks.geo.labels import country_codes_of
from tasks.lake import Lake
from tasks.reward.metrics import Metric, share
from tasks.runtime.labelled import empty_rows
from tasks.runtime.runner import ColumnStage, Inputs, Row

REST = "other"  # the group of answers whose own group is too small
NO_POINT, TOO_LARGE = "no_point", "too_large"
_REJECTS = {"id": pl.String, "reason": pl.String, "evidence_json": pl.String}

Floats = NDArray[np.float64]


def conformal_quantile(errors: Floats, share: float) -> float:
    """The ceil((n + 1) share)-th smallest of n errors, infinite where that is more than n."""
    rank = math.ceil(round((len(errors) + 1) * share, 9))  # 10 * 0.9 may be a little more than 9
    return float(np.sort(errors)[rank - 1]) if rank <= len(errors) else math.inf


@dataclass(frozen=True)
class Calibration:
    """The quantile of each group of answers, and how many answers it was found on."""

    quantiles: Mapping[str, tuple[int, float]]  # the group REST is always there
    is_scaled: bool = False  # quantiles are of errors by floor_km + spread_km

    def group(self, name: str) -> str:
        """The group that an answer is calibrated with."""
        return name if name in self.quantiles else REST


def calibrate(groups: Sequence[str], errors: Floats, settings: RadiusSettings, is_scaled: bool = False) -> Calibration:
    """The quantile of every group with enough answers, and of the rest: of the other answers, or of all if few."""
    names = np.array(groups, dtype=object)
    counts = {name: int((names == name).sum()) for name in sorted(set(groups))}
    large = [name for name, count in counts.items() if count >= settings.least]
    others = ~np.isin(names, large)
    members = {name: names == name for name in large}
    members[REST] = others if others.sum() >= settings.least else np.ones(len(names), dtype=bool)
    counts = {name: int(mine.sum()) for name, mine in members.items()}
    quantiles = {
        name: (counts[name], conformal_quantile(errors[mine], settings.share))
        if counts[name] >= settings.least
        else (counts[name], math.inf)
        for name, mine in members.items()
    }
    return Calibration(quantiles, is_scaled)


def answer_groups(rows: pl.DataFrame, by: Sequence[str]) -> list[str]:
    """The group of each answer with a point (columns kind, said_lat, said_lon)."""
    columns: dict[str, pl.Series] = {"kind": rows["kind"].fill_null("photo")}
    if "continent" in by:
        codes = country_codes_of(rows["said_lat"].to_numpy(), rows["said_lon"].to_numpy())
        columns["continent"] = codes.replace_strict(continents(), default="sea", return_dtype=pl.String)
    if not by:
        return ["all"] * rows.height
    return (
        pl.DataFrame({name: columns[name] for name in by})
        .select(pl.concat_str(by, separator=", "))
        .to_series()
        .to_list()
    )


def _evaluations(inputs: Inputs, settings: EvaluateSettings) -> list[tuple[str, str]]:
    return [*single_evaluations(inputs, settings), *method_evaluations(inputs, settings)]


def _answers(inputs: Inputs, settings: EvaluateSettings) -> pl.DataFrame:
    """What was answered to the pictures of the split: evaluation_id, image_id, point, truth, kind and spread."""
    pictures = benchmark_pictures(inputs, settings).select("image_id", "lat", "lon")
    kinds = inputs.frame("images").select("image_id", "kind")
    points = inputs.frame("predictions").select(
        "evaluation_id", "image_id", "spread_km", said_lat="lat", said_lon="lon"
    )
    return points.join(pictures, on="image_id").join(kinds, on="image_id", how="left")


def _errors(rows: pl.DataFrame) -> Floats:
    return np.asarray(distance_km(*(rows[name].to_numpy() for name in ("said_lat", "said_lon", "lat", "lon"))))


def _scale(rows: pl.DataFrame, settings: RadiusSettings, is_scaled: bool) -> Floats:
    return rows["spread_km"].to_numpy() + settings.floor_km if is_scaled else np.ones(rows.height)


def calibrations(inputs: Inputs, settings: EvaluateSettings) -> dict[str, tuple[str, str, Calibration]]:
    """evaluation_id -> its policy, the evaluation it is calibrated on, and the calibration; none without answers."""
    if settings.split == "validation":
        return {}
    radius, other = settings.radius, on_validation(settings)
    known = _answers(inputs, other).drop_nulls(["said_lat", "said_lon"])
    by_evaluation = {}
    for (policy, evaluation), (_, calibrated_on) in zip(
        _evaluations(inputs, settings), _evaluations(inputs, other), strict=True
    ):
        rows = known.filter(pl.col("evaluation_id") == calibrated_on)
        if rows.is_empty():
            continue
        is_scaled = rows["spread_km"].null_count() == 0
        errors = _errors(rows) / _scale(rows, radius, is_scaled)
        by_evaluation[evaluation] = (
            policy,
            calibrated_on,
            calibrate(answer_groups(rows, radius.by), errors, radius, is_scaled),
        )
    return by_evaluation


def calibration_rows(inputs: Inputs, settings: EvaluateSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """One row for each evaluation and group."""
    rows: list[Row] = [
        {
            "id": f"{evaluation}|{inputs.snapshot_id}|{group}",
            "evaluation_id": evaluation,
            "snapshot_id": inputs.snapshot_id,
            "radius_group": group,
            "policy": policy,
            "agent_recipe": settings.agent_recipe,
            "tools": ", ".join(settings.tools) or "none",
            "calibrated_on": calibrated_on,
            "answers": answers,
            "share": settings.radius.share,
            "quantile": quantile if math.isfinite(quantile) else None,
            "floor_km": settings.radius.floor_km if calibration.is_scaled else None,
        }
        for evaluation, (policy, calibrated_on, calibration) in calibrations(inputs, settings).items()
        for group, (answers, quantile) in calibration.quantiles.items()
    ]
    return _frame(rows, "calibrations"), pl.DataFrame(schema=_REJECTS)


def radius_rows(inputs: Inputs, settings: EvaluateSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """One row for each answer of an evaluation that is calibrated."""
    answers = _answers(inputs, settings)
    kept: list[Row] = []
    for evaluation, (policy, _, calibration) in calibrations(inputs, settings).items():
        rows = answers.filter(pl.col("evaluation_id") == evaluation).sort("image_id")
        placed = rows.drop_nulls(["said_lat", "said_lon"])
        if calibration.is_scaled and placed["spread_km"].null_count():
            continue  # answers of an earlier version: their confidence is not known
        groups = [calibration.group(name) for name in answer_groups(placed, settings.radius.by)]
        radii = np.array([calibration.quantiles[name][1] for name in groups]) * _scale(
            placed, settings.radius, calibration.is_scaled
        )
        known = dict(zip(placed["image_id"], zip(groups, radii, _errors(placed), strict=True), strict=True))
        for image in rows["image_id"]:
            group, radius, error = known.get(image, (None, math.inf, math.inf))
            bounded = math.isfinite(radius)
            kept.append(
                {
                    "id": f"{evaluation}|{inputs.snapshot_id}|{image}",
                    "evaluation_id": evaluation,
                    "snapshot_id": inputs.snapshot_id,
                    "image_id": image,
                    "policy": policy,
                    "radius_group": group,
                    "radius_km": float(radius) if bounded else None,
                    "covered": bool(error <= radius) if bounded else None,
                    "abstains": abstains(group is not None, radius, settings.radius),
                }
            )
    return _frame(kept, "radii"), pl.DataFrame(schema=_REJECTS)


def abstains(has_point: bool, radius_km: float, settings: RadiusSettings) -> str | None:
    """Why an answer is not to be given; None: it is."""
    if not has_point:
        return NO_POINT
    return TOO_LARGE if settings.max_km < radius_km < math.inf else None


@dataclass(frozen=True)
class KnownRadius:
    """What an answer outside an evaluation can be told of its radius."""

    words: str
    radius_km: float | None = None
    abstains: str | None = None


def known_radius(
    lake: Lake, policy: str, recipe: str, point: tuple[float, float], settings: RadiusSettings, kind: str = "photo"
) -> KnownRadius:
    """The radius of a single answer with tools, from the policy's newest calibration in the lake.

    It holds for pictures like those of the lake's validation split, which a picture of anybody's need not be.
    """
    mine = (pl.col("policy") == policy) & (pl.col("agent_recipe") == recipe) & (pl.col("tools") != "none")
    rows = lake.read("calibrations").filter(mine & pl.col("floor_km").is_null()).sort("written_at")
    if rows.is_empty():
        return KnownRadius(
            f"no radius: {policy} was never calibrated with tools (geofix evaluate --set evaluate.policies=[{policy}] "
            f"--set evaluate.agent_recipe={recipe} --set evaluate.tools=[all] --set evaluate.radius.calibrate=true)"
        )
    rows = rows.filter(pl.col("evaluation_id") == rows["evaluation_id"][-1]).unique("radius_group", keep="last")
    point_row = pl.DataFrame({"kind": [kind], "said_lat": [point[0]], "said_lon": [point[1]]})
    known = {row["radius_group"]: row for row in rows.iter_rows(named=True)}
    row = known.get(answer_groups(point_row, settings.by)[0]) or known[REST]
    radius = math.inf if row["quantile"] is None else float(row["quantile"])
    why = abstains(True, radius, settings)
    return KnownRadius(radius_words(row), row["quantile"], why)


def radius_words(row: Mapping[str, Any]) -> str:
    """What a row of `calibrations` promises."""
    if row["quantile"] is None:
        return f"not enough answers for a radius with {row['share']:.0%}: {row['answers']} of the validation split"
    if row["floor_km"] is not None:
        scale = f"({row['floor_km']:g} km + the attempts' distance)"
        return f"within {row['quantile']:.2f} x {scale} with {row['share']:.0%}"
    return f"within {row['quantile']:,.1f} km with {row['share']:.0%}"


def radius_metrics(radii: pl.DataFrame) -> list[Metric]:
    """What the radii of an evaluation are worth; none where it has none."""
    if radii.is_empty():
        return []
    bounded = radii.drop_nulls("radius_km")
    answered = bounded.filter(pl.col("abstains").is_null())
    middle = float(np.median(bounded["radius_km"].to_numpy())) if bounded.height else math.nan
    return [
        share("radius_coverage", int(bounded["covered"].sum()), bounded.height),
        share("radius_coverage_given", int(answered["covered"].sum()), answered.height),
        Metric("radius_median_km", middle, math.nan, math.nan, bounded.height),
        share("abstention_rate", radii["abstains"].count(), radii.height),
    ]


def _frame(rows: list[Row], table: str) -> pl.DataFrame:
    empty = empty_rows(table)
    return pl.DataFrame(rows, schema=empty.schema) if rows else empty


Compute = Callable[[Inputs, EvaluateSettings], tuple[pl.DataFrame, pl.DataFrame]]


def _stage(name: str, table: str, compute: Compute, *more: str) -> ColumnStage:
    return ColumnStage(
        name=name,
        reads=("predictions", "labels", "images", "models", *more),
        writes=(table,),
        compute=compute,
        identity=radius_identity,
        snapshot=True,
        keeps_history=True,
    )


def radius_identity(settings: EvaluateSettings) -> dict[str, Any]:
    """The settings that radii depend on; whom they are of is part of their rows."""
    return settings.radius.model_dump(mode="json", exclude={"calibrate"})


CALIBRATIONS = _stage("evaluate.calibrations", "calibrations", calibration_rows)
RADII = _stage("evaluate.radii", "radii", radius_rows)
