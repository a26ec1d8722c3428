"""The stages that ask several times before they answer: parallel scaling with a verifier, and the swarm.

Every row of `predictions` they write has a row of `deliberations` with what led to it. Calls are repeated by seed, so
that what one method asks and another asks too is asked once, and a killed run goes on from the table `calls`.
"""

import json
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from schemas.messages import Message, Usage, image_part, text_part
from schemas.settings.evaluate import EvaluateSettings
from tasks.agent.attempt import Attempt, recipe_with
from tasks.agent.environment import Trajectory
from tasks.agent.policies import STAGES, TRAINED
from tasks.evaluate import ensembles, scaling
from tasks.evaluate.answers import WorkerContext, open_context, picture_of, prediction, require_server
from tasks.evaluate.swarm import Outcome, Swarm
from tasks.runtime.runner import Kept, Resources, Row, Stage, WorkerSetup


@dataclass(frozen=True)
class SwarmContext:
    """A worker's context and the network that elects, if there is one."""

    answers: WorkerContext
    network: Any


async def scale_one(item: Row, context: WorkerContext) -> Kept:
    """One picture: N attempts of a policy, the verifier's answer, and the nearest attempt."""
    settings, policy = context.settings, item["policy"]
    require_server(policy, context)
    chosen = settings.scaling
    picture = await picture_of(item, context)
    found = await scaling.scale(
        context.chat,
        policy,
        chosen.verifier,
        picture,
        recipe_with(settings.agent_recipe, settings.tools),
        context.tools,
        chosen.n,
        seed=item["sha256"],
        max_tokens=settings.max_tokens,
        sampling={"temperature": chosen.temperature, "top_p": chosen.top_p, "top_k": chosen.top_k},
        verifier_tokens=chosen.verifier_tokens,
    )
    errors = [scaling.error_of(one.text, item["lat"], item["lon"]) for one in found.attempts]
    nearest = min(range(chosen.n), key=lambda at: (errors[at] is None, errors[at] or 0.0, at))
    every = sum((one.trajectory.usage for one in found.attempts), Usage())
    shown = found.attempts[nearest]
    answers = (
        found.attempts[0],
        _as_attempt(_told(item, found), found.verifier_answer, found.usage, found.seconds),
        Attempt(shown.text, replace(shown.trajectory, usage=every), sum(one.seconds for one in found.attempts)),
    )
    rows: list[Row] = []
    files: list[Row] = []
    kept: list[Row] = []
    for name, tried in zip(ensembles.scaled_names(policy, chosen.n), answers, strict=True):
        evaluation = ensembles.scaling_evaluation(name, settings)
        row, crops = await prediction(item, name, evaluation, tried, picture, context)
        rows.append(row)
        files += crops
        kept.append({**_key(item, name, evaluation), "method": name.removeprefix(f"{policy} ")})
    kept[1] |= scaling.as_row(found)
    return Kept({"derived": files, "deliberations": kept, "predictions": rows}, found.usage)


async def discuss_one(item: Row, context: SwarmContext) -> Kept:
    """One picture: every agent alone, the vote, the debate and the swarm."""
    settings = context.answers.settings
    chosen = settings.swarm
    picture = await picture_of(item, context.answers)
    swarm = Swarm(
        context.answers.chat,
        chosen.agents,
        chosen.answerers,
        chosen.reviewers,
        chosen.rounds,
        chosen.context_chars,
        settings.max_tokens,
        chosen.temperature,
        chosen.same_km,
    )
    election, links = _election(context.network, picture.view, len(chosen.agents))
    seed = item["sha256"]
    found: list[tuple[str, Outcome, float]] = []
    for number, agent in enumerate(chosen.agents):
        found.append(await _timed(ensembles.alone(agent), swarm.single(picture, number, seed)))
    found.append(await _timed(ensembles.VOTE, swarm.vote(picture, seed)))
    found.append(await _timed(ensembles.DEBATE, swarm.debate(picture, chosen.debate_rounds, seed)))
    found.append(await _timed(ensembles.SWARM, swarm.locate(picture, election, links, seed)))
    rows, kept = [], []
    for name, outcome, seconds in found:
        evaluation = ensembles.swarm_evaluation(name, settings)
        tried = _as_attempt(_discussion(item, outcome, chosen.agents), outcome.text, outcome.usage, seconds)
        rows.append(
            (await prediction(item, name, evaluation, tried, picture, context.answers))[0]
        )  # no tools: no crops
        kept.append({**_key(item, name, evaluation), "method": outcome.how, "rounds": outcome.rounds})
        if outcome.reviews:
            kept[-1]["answers_json"] = json.dumps({"answerers": outcome.answerers, "reviews": outcome.reviews})
    return Kept({"deliberations": kept, "predictions": rows}, sum((one.usage for _, one, _ in found), Usage()))


async def _timed(name: str, asking: Any) -> tuple[str, Outcome, float]:
    started = time.monotonic()
    found: Outcome = await asking
    return name, found, time.monotonic() - started


def _election(network: Any, jpeg: bytes, agents: int) -> tuple[list[float], np.ndarray]:
    """Election and links by the learned network; without one all agents are equal."""
    if network is None:
        return [0.5] * agents, np.ones((agents, agents)) - np.eye(agents)
    from tasks.evaluate.swarm_learning import predict

    return predict(network, jpeg)


def _key(item: Row, policy: str, evaluation: str) -> Row:
    return {
        "evaluation_id": evaluation,
        "image_id": item["image_id"],
        "snapshot_id": item["snapshot_id"],
        "policy": policy,
        "method": None,
        "rounds": None,
        "answers_json": None,
        "verifier_input_json": None,
        "verifier_answer": None,
    }


def _as_attempt(messages: list[Message], text: str, usage: Usage, seconds: float) -> Attempt:
    return Attempt(text, Trajectory(tuple(messages), final_text=text, usage=usage), seconds)


def _told(item: Row, found: scaling.Scaled) -> list[Message]:
    """The verifier's question and answer as a conversation, the picture by its digest."""
    [asked] = found.verifier_input
    texts = [part for part in asked["content"] if part["type"] == "text"]
    shown = image_part(item["sha256"], item["extension"])
    return [{"role": "user", "content": [shown, *texts]}, {"role": "assistant", "content": found.verifier_answer}]


def _discussion(item: Row, outcome: Outcome, agents: tuple[str, ...]) -> list[Message]:
    shown = image_part(item["sha256"], item["extension"])
    first: Message = {"role": "user", "content": [shown, text_part("Where was this picture taken?")]}
    spoken: list[Message] = [
        {"role": "assistant", "content": f"{agents[one.agent]} ({one.when}): {one.text}"} for one in outcome.log
    ]
    return [first, *spoken]


def scaling_roles(settings: EvaluateSettings) -> tuple[str, ...]:
    named = [name for name in settings.scaling.policies if name not in STAGES and not name.startswith(TRAINED)]
    return (*named, settings.scaling.verifier) if settings.scaling.policies else ()


def open_swarm(settings: EvaluateSettings, setup: WorkerSetup) -> SwarmContext:
    network = None
    if settings.swarm.network:
        from tasks.evaluate.swarm_learning import load_for

        network = load_for(settings.swarm.network, len(settings.swarm.agents))
    return SwarmContext(open_context(settings, setup), network)


SCALING = Stage(
    name="evaluate.scaling",
    reads=("labels", "images", "models"),
    writes=("derived", "deliberations", "predictions"),
    items=ensembles.scaling_items,
    work=scale_one,
    open=open_context,
    resources=Resources(cpus=1, concurrency=4, chunk=1),
    services=("chat",),
    roles=scaling_roles,
    identity=ensembles.scaling_identity,
    snapshot=True,
    keeps_history=True,
    unhashed=("snapshot_id",),
)

SWARM = Stage(
    name="evaluate.swarm",
    reads=("labels", "images", "models"),
    writes=("deliberations", "predictions"),
    items=ensembles.swarm_items,
    work=discuss_one,
    open=open_swarm,
    resources=Resources(cpus=1, concurrency=4, chunk=1),
    services=("chat",),
    roles=lambda settings: settings.swarm.agents,
    identity=ensembles.swarm_identity,
    snapshot=True,
    keeps_history=True,
    unhashed=("snapshot_id",),
)
