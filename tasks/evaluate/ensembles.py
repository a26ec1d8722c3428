"""The steps that ask several times before they answer, one for each evaluation method that a recipe offers.

Every row of `predictions` they write has a row of `deliberations` with what led to it. Calls are repeated by seed, so
that what one method asks and another asks too is queried once, and a killed run goes on from the table `calls`.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from schemas.messages import image_part
from schemas.settings.evaluate import EvaluateSettings
from tasks.agent.attempt import PHASES, TRAINED, policy_role
from tasks.evaluate.answers import (
    WorkerContext,
    answer_identity,
    benchmark_pictures,
    judge_point,
    open_context,
    picture_of,
    prediction_row,
    require_server,
    services,
    splits_asked,
)
from tasks.geo.distance import EARTH_RADIUS_KM, distance_km
from tasks.recipes.evaluation import EvaluationContext, EvaluationMethod, evaluation_methods
from tasks.recipes.reading import named_point
from tasks.recipes.recipe import prompt_with
from tasks.runtime.runner import Inputs, Kept, Resources, Row, Stage, WorkerSetup, digest

METHODS = evaluation_methods()


@dataclass(frozen=True)
class MethodContext:
    """A worker's context and what the method keeps open."""

    method: EvaluationMethod
    answers: WorkerContext
    opened: Any


def method_identity(method: EvaluationMethod, settings: EvaluateSettings) -> dict[str, Any]:
    """The settings a method's answers depend on."""
    words = digest(method.words(settings))
    return {**answer_identity(settings), method.name: {**method.identity(settings), "words": words}}


def method_evaluation(method: EvaluationMethod, name: str, settings: EvaluateSettings) -> str:
    """The id of one of a method's evaluations."""
    return digest("evaluation", name, method_identity(method, settings))


def method_items(method: EvaluationMethod, inputs: Inputs, settings: EvaluateSettings) -> pl.DataFrame:
    """One row for each policy that the method is applied to, and picture, those for calibration included."""
    return pl.concat([_items_of_split(method, inputs, split_settings) for split_settings in splits_asked(settings)])


def _items_of_split(method: EvaluationMethod, inputs: Inputs, settings: EvaluateSettings) -> pl.DataFrame:
    settings = method.bound(settings, inputs.frame("models"))
    identity = method_identity(method, settings)
    policies = _policies(method, inputs, settings)
    named = [
        (policy, digest(method.name, *([policy] if policy != method.name else []), identity)) for policy in policies
    ]
    families = pl.DataFrame(named, schema={"policy": pl.String, "family_id": pl.String}, orient="row")
    pictures = benchmark_pictures(inputs, settings)
    return families.join(pictures, how="cross").select(
        pl.format("{}|{}", "family_id", "image_id").alias("id"),
        *families.columns,
        *pictures.columns,
        pl.lit(inputs.snapshot_id).alias("snapshot_id"),
        pl.lit(settings.split).alias("split"),
    )


def method_evaluations(inputs: Inputs, settings: EvaluateSettings) -> list[tuple[str, str]]:
    """(policy, evaluation_id) of every evaluation that the methods are to make."""
    return [
        (name, method_evaluation(method, name, method.bound(settings, inputs.frame("models"))))
        for method in METHODS.values()
        for policy in _policies(method, inputs, settings)
        for name in method.evaluations(policy, settings)
    ]


def expected_predictions(inputs: Inputs, settings: EvaluateSettings) -> pl.DataFrame:
    """evaluation_id, policy, image_id, lat and lon of every prediction that the methods are to make."""
    members = method_evaluations(inputs, settings)
    evaluations = pl.DataFrame(members, schema={"policy": pl.String, "evaluation_id": pl.String}, orient="row")
    pictures = benchmark_pictures(inputs, settings).select("image_id", "lat", "lon")
    return evaluations.join(pictures, how="cross").select("evaluation_id", "policy", "image_id", "lat", "lon")


def _policies(method: EvaluationMethod, inputs: Inputs, settings: EvaluateSettings) -> list[str]:
    models = inputs.frame("models")
    return list(dict.fromkeys(policy_role(name, models, settings.agent_recipe) for name in method.policies(settings)))


async def work(item: Row, context: MethodContext) -> Kept:
    """One picture: a row of `predictions` and one of `deliberations` for each evaluation of the method."""
    method, answers = context.method, context.answers
    settings = answers.settings.model_copy(update={"split": item["split"]})
    require_server(item["policy"], answers)
    picture = await picture_of(item, answers)

    async def error_of(text: str) -> float | None:
        point = await judge_point(text, item["lat"], item["lon"], answers)
        return None if point["error_km"] is None else float(point["error_km"])

    evaluation_context = EvaluationContext(
        settings,
        item["policy"],
        answers.chat,
        answers.tools,
        prompt_with(settings.agent_recipe, settings.tools, settings.prompt),
        picture,
        image_part(item["sha256"], item["extension"]),
        item["sha256"],
        error_of,
        lambda text: named_point(settings.agent_recipe, text, answers.geocoder),
        context.opened,
    )
    rows: dict[str, list[Row]] = {"derived": [], "deliberations": [], "predictions": []}
    points: list[tuple[float | None, float | None]] = []  # of further attempts at the picture
    deliberated, usage = await method.answer(evaluation_context)
    for deliberation in deliberated:
        evaluation = method_evaluation(method, deliberation.name, settings)
        row, crops = await prediction_row(item, deliberation.name, evaluation, deliberation.attempt, picture, answers)
        rows["predictions"].append(row)
        rows["derived"] += crops
        key = {name: row[name] for name in ("evaluation_id", "image_id", "snapshot_id", "policy")}
        averaged = [row]
        for attempt in deliberation.mean_of[1:]:
            more, crops = await prediction_row(item, deliberation.name, evaluation, attempt, picture, answers)
            averaged.append(more)
            rows["derived"] += [crop for crop in crops if crop not in rows["derived"]]
        attempts = [{name: attempt[name] for name in ATTEMPT_COLUMNS} for attempt in averaged]
        points = [(attempt["lat"], attempt["lon"]) for attempt in averaged[1:]] or points
        told = {"attempts_json": json.dumps(attempts, ensure_ascii=False) if deliberation.mean_of else None}
        rows["deliberations"].append({**key, **_NO_DETAILS, **deliberation.details, **told})
    for row in rows["predictions"]:
        row["spread_km"] = spread_km(row["lat"], row["lon"], points)
    return Kept(rows, usage)


def spread_km(
    lat: float | None, lon: float | None, points: Sequence[tuple[float | None, float | None]]
) -> float | None:
    """How far other attempts at the picture are from an answer, the median; one without a point is at the antipode."""
    if lat is None or lon is None or not points:
        return None
    away = (_FARTHEST_KM if y is None or x is None else distance_km(lat, lon, y, x) for y, x in points)
    return float(np.median([*away]))


# Of a prediction, what its scores are computed from.
ATTEMPT_COLUMNS = (
    *("answer", "lat", "lon", "tool_calls", "tool_successes", "tool_pattern", "levels_json", "address_km"),
    *("prompt_tokens", "completion_tokens", "cost_usd", "seconds"),
)
_FARTHEST_KM = math.pi * EARTH_RADIUS_KM
_NO_DETAILS = dict.fromkeys(("method", "rounds", "answers_json", "verifier_input_json", "verifier_answer"))


def _open(method: EvaluationMethod, settings: EvaluateSettings, setup: WorkerSetup) -> MethodContext:
    if method.policies(settings):
        settings = method.bound(settings, setup.lake.read("models"))
    return MethodContext(method, open_context(settings, setup), method.open(settings, setup.lake))


def _roles(method: EvaluationMethod, settings: EvaluateSettings) -> tuple[str, ...]:
    return tuple(name for name in method.roles(settings) if name not in PHASES and not name.startswith(TRAINED))


def _services(method: EvaluationMethod, settings: EvaluateSettings) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*services(settings), *method.services(settings))))


def method_stage(method: EvaluationMethod) -> Stage:
    """The step `evaluate.NAME` of a method."""
    return Stage(
        name=f"evaluate.{method.name}",
        reads=("labels", "images", "models"),
        writes=("derived", "deliberations", "predictions"),
        items=partial(method_items, method),
        work=work,
        open=partial(_open, method),
        resources=Resources(cpus=1, concurrency=4, chunk=1),
        services=partial(_services, method),
        roles=partial(_roles, method),
        identity=partial(method_identity, method),
        snapshot=True,
        keeps_history=True,
        unhashed=("snapshot_id", "split"),
    )


ENSEMBLES = {name: method_stage(method) for name, method in METHODS.items()}
