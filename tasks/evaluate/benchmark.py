"""Which policy answers which picture: the items of the evaluation, the same for asking and for scoring."""

from typing import Any

import polars as pl

from schemas.settings.evaluate import EvaluateSettings
from tasks.agent.policies import TRAINED, newest_model, policy_role
from tasks.runtime.labelled import labelled_pictures
from tasks.runtime.runner import Inputs, digest

__all__ = ["TRAINED", "answering", "benchmark_pictures", "evaluation_id", "items", "policies"]


def answering(settings: EvaluateSettings) -> dict[str, Any]:
    """The settings an answer depends on. Another policy, or other intervals, leave the answers at hand as they are."""
    wanted = (
        *("split", "source", "temperature", "max_tokens", "view_max_pixels", "view_min_pixels"),
        *("tools", "agent_recipe", "verifier", "geocode"),
    )
    return {name: value for name, value in settings.identity().items() if name in wanted}


def policies(inputs: Inputs, settings: EvaluateSettings) -> list[str]:
    """The policies to evaluate; a trained one is `trained:` and its model id."""
    models = inputs.frame("models")
    names = [policy_role(name, models) for name in settings.policies]
    newest = newest_model(models, "grpo") or newest_model(models)
    if settings.trained and newest is not None:
        names.append(f"{TRAINED}{newest}")
    return list(dict.fromkeys(names))


def evaluation_id(policy: str, settings: EvaluateSettings) -> str:
    """The name of one policy's evaluation. It stays while the benchmark grows, so that only new pictures are asked."""
    return digest("evaluation", policy, answering(settings))


def benchmark_pictures(inputs: Inputs, settings: EvaluateSettings) -> pl.DataFrame:
    """The pictures to answer with their truth, of the whole split or of one ingested source."""
    pictures = labelled_pictures(inputs, settings.split, None if settings.source else settings.max_images)
    if settings.source:
        own = inputs.frame("images").filter(pl.col("source") == settings.source).select("image_id")
        pictures = pictures.join(own, on="image_id", how="semi")
        pictures = pictures.head(settings.max_images) if settings.max_images else pictures
    levels = inputs.frame("labels").select("image_id", "country", "region", "city")
    return pictures.join(levels, on="image_id", how="left", maintain_order="left")


def items(inputs: Inputs, settings: EvaluateSettings) -> pl.DataFrame:
    """One row for each policy and picture."""
    pictures = benchmark_pictures(inputs, settings)
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
