"""The labels: pictures, judgements and addresses joined, and the reason why a picture has none.

A picture whose judgement or address is still missing, because its request failed, is neither kept nor rejected here:
it stands in `failures` under the step that is to be repeated.
"""

import polars as pl

from schemas.settings.curate import LabelsSettings
from schemas.tables import TABLES
from tasks.runtime.runner import ColumnStage, Inputs

KEPT_CLASS = "localizable"
_VERDICT = {"model": "judge_model", "reason": "judge_reason", "sub_scores_json": "judge_scores_json"}
_LABEL = [name for name in TABLES["labels"].columns if name != "tier"]


def compute(inputs: Inputs, settings: LabelsSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Labels and rejects of all pictures whose steps are done."""
    pictures = _joined(inputs).with_columns(reason=_reason(settings.min_score))
    done = pictures.filter(pl.col("reason").is_null() | (pl.col("reason") != _WAITING))
    kept = done.filter(pl.col("reason").is_null()).select(*_LABEL, id="image_id")
    rejects = done.filter(pl.col("reason").is_not_null()).select(
        "reason", id="image_id", evidence_json=_evidence(settings.min_score)
    )
    return kept, rejects


_WAITING = "waiting"  # for a judgement or an address; never written


def _joined(inputs: Inputs) -> pl.DataFrame:
    images = inputs.frame("images").select("image_id", "place_id", "sha256", "lat", "lon")
    pictures = inputs.frame("duplicates").select("image_id", "split", "duplicate_of", "leaks_into", why="evidence_json")
    # A judgement of other bytes, or an address of another point, is not this picture's.
    judged = (
        inputs.frame("judgements")
        .select(
            "image_id", "sha256", "problem", "localizability", "scenes_json", *_VERDICT,
            localizability_score="score", problem_json="evidence_json", judged=True,
        )
        .rename(_VERDICT)
    )  # fmt: skip
    addresses = inputs.frame("addresses").select(
        "image_id", "lat", "lon", "country_code", "country", "region", "city", addressed=True
    )
    return (
        pictures.join(images, on="image_id")
        .join(judged, on=["image_id", "sha256"], how="left")
        .join(addresses, on=["image_id", "lat", "lon"], how="left")
    )


def _reason(min_score: float) -> pl.Expr:
    """Why a picture is rejected, the first reason that applies; null for a label."""
    return (
        pl.when(pl.col("duplicate_of").is_not_null())
        .then(pl.lit("exact_duplicate"))
        .when(pl.col("leaks_into").is_not_null())
        .then(pl.lit("sequence_leak"))
        .when(pl.col("judged").is_null())
        .then(pl.lit(_WAITING))
        .when(pl.col("problem").is_not_null())
        .then("problem")
        .when(pl.col("localizability") != KEPT_CLASS)
        .then("localizability")
        .when(pl.col("localizability_score") < min_score)
        .then(pl.lit("low_score"))
        .when(pl.col("addressed").is_null())
        .then(pl.lit(_WAITING))
        .when(pl.col("country").is_null())
        .then(pl.lit("no_address"))
    )


def _evidence(min_score: float) -> pl.Expr:
    model, why, score = (
        pl.col(name).alias(short)
        for name, short in (("judge_model", "model"), ("judge_reason", "reason"), ("localizability_score", "score"))
    )
    limit = pl.lit(min_score).alias("min_score")
    reason = pl.col("reason")
    return (
        pl.when(reason.is_in(["exact_duplicate", "sequence_leak"]))
        .then("why")
        .when(pl.col("problem").is_not_null())
        .then("problem_json")
        .when(reason == "low_score")
        .then(pl.struct(limit, model, why, score).struct.json_encode())
        .when(reason == "no_address")
        .then(pl.struct("lat", "lon").struct.json_encode())
        .otherwise(pl.struct(model, why, score).struct.json_encode())
    )


STAGE = ColumnStage(
    name="curate.labels",
    section="curate.labels",
    reads=("images", "duplicates", "judgements", "addresses"),
    writes=("labels",),
    compute=compute,
)
