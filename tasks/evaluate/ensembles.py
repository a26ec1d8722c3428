"""Policies made of several answers: parallel scaling of a policy, and a swarm of agents beside its baselines.

Each is a family of evaluations over the same pictures: an item asks once and gives one prediction for each of them.
"""

from typing import Any

import polars as pl

from schemas.settings.evaluate import EvaluateSettings
from tasks.agent.policies import policy_role
from tasks.evaluate.benchmark import answering, benchmark_pictures
from tasks.runtime.runner import Inputs, digest

SWARM, VOTE, DEBATE = "swarm", "swarm vote", "swarm debate"


def scaled_names(policy: str, n: int) -> tuple[str, str, str]:
    """A scaled policy's evaluations: first attempt, verifier's answer, attempt nearest to the truth."""
    return f"{policy} pass@1", f"{policy} verifier@{n}", f"{policy} best@{n}"


def swarm_names(settings: EvaluateSettings) -> tuple[str, ...]:
    """The evaluations of a swarm: itself, the vote, the debate, and every agent alone."""
    return SWARM, VOTE, DEBATE, *(alone(agent) for agent in settings.swarm.agents)


def alone(agent: str) -> str:
    return f"swarm agent {agent}"


def scaling_identity(settings: EvaluateSettings) -> dict[str, Any]:
    """The settings the answers of parallel scaling depend on."""
    return {**answering(settings), "scaling": settings.scaling.model_dump(mode="json", exclude={"policies"})}


def swarm_identity(settings: EvaluateSettings) -> dict[str, Any]:
    """The settings the answers of a swarm depend on."""
    return {**answering(settings), "swarm": settings.swarm.model_dump(mode="json")}


def scaling_evaluation(name: str, settings: EvaluateSettings) -> str:
    return digest("evaluation", name, scaling_identity(settings))


def swarm_evaluation(name: str, settings: EvaluateSettings) -> str:
    return digest("evaluation", name, swarm_identity(settings))


def scaling_items(inputs: Inputs, settings: EvaluateSettings) -> pl.DataFrame:
    """One row for each scaled policy and picture."""
    models = inputs.frame("models")
    policies = list(dict.fromkeys(policy_role(name, models) for name in settings.scaling.policies))
    return _items(inputs, settings, [(one, digest("scaling", one, scaling_identity(settings))) for one in policies])


def swarm_items(inputs: Inputs, settings: EvaluateSettings) -> pl.DataFrame:
    """One row for each picture, if there is a swarm."""
    named = [(SWARM, digest("swarm", swarm_identity(settings)))] if settings.swarm.agents else []
    return _items(inputs, settings, named)


def _items(inputs: Inputs, settings: EvaluateSettings, named: list[tuple[str, str]]) -> pl.DataFrame:
    families = pl.DataFrame(named, schema={"policy": pl.String, "family_id": pl.String}, orient="row")
    pictures = benchmark_pictures(inputs, settings)
    return families.join(pictures, how="cross").select(
        pl.format("{}|{}", "family_id", "image_id").alias("id"),
        *families.columns,
        *pictures.columns,
        pl.lit(inputs.snapshot_id).alias("snapshot_id"),
    )


def asked(inputs: Inputs, settings: EvaluateSettings) -> pl.DataFrame:
    """evaluation_id, policy, image_id, lat and lon of every prediction that ensembles are to make."""
    members: list[tuple[str, str, str]] = []
    for policy in scaling_items(inputs, settings)["policy"].unique(maintain_order=True):
        names = scaled_names(policy, settings.scaling.n)
        members += [("scaling", name, scaling_evaluation(name, settings)) for name in names]
    if settings.swarm.agents:
        members += [("swarm", name, swarm_evaluation(name, settings)) for name in swarm_names(settings)]
    evaluations = pl.DataFrame(
        [(name, evaluation) for _, name, evaluation in members],
        schema={"policy": pl.String, "evaluation_id": pl.String},
        orient="row",
    )
    pictures = benchmark_pictures(inputs, settings).select("image_id", "lat", "lon")
    return evaluations.join(pictures, how="cross").select("evaluation_id", "policy", "image_id", "lat", "lon")
