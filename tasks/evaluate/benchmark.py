"""Which policy answers which picture: the items of the evaluation, the same for asking and for scoring."""

from typing import Any

import polars as pl

from schemas.settings.evaluate import EvaluateSettings
from tasks.runtime.labelled import labelled_pictures
from tasks.runtime.runner import Inputs, digest

TRAINED = "trained:"


def answering(settings: EvaluateSettings) -> dict[str, Any]:
    """The settings an answer depends on. Another policy, or other intervals, leave the answers at hand as they are."""
    wanted = ("split", "temperature", "max_tokens", "view_max_pixels", "view_min_pixels")
    return {name: value for name, value in settings.identity().items() if name in wanted}


def policies(inputs: Inputs, settings: EvaluateSettings) -> list[str]:
    """The policies to evaluate; the trained one is `trained:` and its model id."""
    names = list(settings.policies)
    if settings.trained:
        models = inputs.frame("models").sort("written_at")
        names += [f"{TRAINED}{models['model_id'][-1]}"] if models.height else []
    return names


def evaluation_id(policy: str, settings: EvaluateSettings) -> str:
    """The name of one policy's evaluation. It stays while the benchmark grows, so that only new pictures are asked."""
    return digest("evaluation", policy, answering(settings))


def items(inputs: Inputs, settings: EvaluateSettings) -> pl.DataFrame:
    """One row for each policy and picture."""
    pictures = labelled_pictures(inputs, settings.split, settings.max_images)
    names = policies(inputs, settings)
    evaluations = pl.DataFrame(
        {"policy": names, "evaluation_id": [evaluation_id(name, settings) for name in names]},
        schema={"policy": pl.String, "evaluation_id": pl.String},
    )
    return evaluations.join(pictures, how="cross").select(
        pl.format("{}|{}", "evaluation_id", "image_id").alias("id"),
        *evaluations.columns,
        *pictures.columns,
        pl.lit(inputs.snapshot_id).alias("snapshot_id"),
    )
