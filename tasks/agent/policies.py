"""Policies by name: a model role, a trained model by id, or the newest model of a training stage of this lake."""

import polars as pl

from schemas.errors import StageRefused

TRAINED = "trained:"
STAGES = ("sft", "cold_start", "grpo")


def newest_model(models: pl.DataFrame, training_stage: str | None = None) -> str | None:
    """The id of the newest model, of one training stage or of any."""
    if training_stage is not None:
        models = models.filter(pl.col("training_stage") == training_stage)
    return str(models.sort("written_at")["model_id"][-1]) if models.height else None


def policy_role(name: str, models: pl.DataFrame) -> str:
    """The role a policy is asked by: `cold_start` and the like are the newest model of that stage."""
    if name not in STAGES:
        return name
    found = newest_model(models, name)
    if found is None:
        raise StageRefused(f"policy '{name}' is the newest {name} model, and the lake has none: train it first")
    return f"{TRAINED}{found}"
