"""The step that lets a swarm discuss pictures whose place is known, L rounds each (3.3, Algorithm 1).

In a round every agent is drawn with its chance P, answers, is reviewed by agents that a random walk finds, and sums up;
then its answer is compared with the truth. A drawn agent goes on from its last answer, as Y(l) = g(X, Y(l - 1)) has it.
The free discussion of stage 3 changes no agent's own answer, so it is left out here. The truth is in no request.
"""

import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import polars as pl

from schemas.settings.evaluate import EvaluateSettings
from tasks.agent.attempt import TRAINED, stable_seed
from tasks.agent.picture import stored_picture
from tasks.agent.service_tools import open_toolbox, tool_services
from tasks.agent.toolbox import Toolbox
from tasks.lake.image_store import ImageStore
from tasks.recipes.reading import AddressSearch, located, named_point, reads_addresses
from tasks.recipes.recipe import RECIPES
from tasks.recipes.smilegeo.estimate import Estimate
from tasks.recipes.smilegeo.form import ASK, ROUND_WORDS
from tasks.recipes.smilegeo.swarm import Outcome, Said, Swarm
from tasks.runtime.labelled import labelled_pictures
from tasks.runtime.runner import Inputs, Kept, Resources, Row, Stage, WorkerSetup, digest
from tasks.services import Chat
from tasks.services.geocoder import open_recalling

_ANSWERS = ("agents", "reviewers", "same_km", "context_chars", "temperature", "web_search")


def learns(settings: EvaluateSettings) -> bool:
    """Whether an election is to be learned."""
    return bool(settings.swarm.agents) and settings.swarm.election == "learned" and settings.swarm.network is None


def rounds_identity(settings: EvaluateSettings) -> dict[str, Any]:
    """The settings that the rounds depend on."""
    swarm, learning = settings.swarm.identity(), settings.swarm.learning
    told = {name: settings.swarm.personas[name] for _, name in settings.swarm.cast if name}
    seen = {name: getattr(settings, name) for name in ("agent_recipe", "max_tokens", "view_max_pixels")}
    own = {"rounds": learning.rounds, "printed_links": learning.printed_links, "personas": told}
    return {**seen, **{name: swarm[name] for name in _ANSWERS}, **own, "words": digest(ROUND_WORDS)}


def swarm_id(settings: EvaluateSettings) -> str:
    """By which the rounds of these settings are found."""
    return digest("swarm", rounds_identity(settings))


def learning_pictures(inputs: Inputs, settings: EvaluateSettings) -> pl.DataFrame:
    """The pictures to learn from; none where nothing is to be learned."""
    learning, wanted = settings.swarm.learning, RECIPES[settings.agent_recipe].pictures
    pictures = labelled_pictures(inputs, learning.split, learning.max_images, wanted)
    return pictures if learns(settings) else pictures.clear()


def items(inputs: Inputs, settings: EvaluateSettings) -> pl.DataFrame:
    """One row for each picture to learn from."""
    mine = pl.lit(swarm_id(settings)).alias("swarm_id")
    return learning_pictures(inputs, settings).select(
        pl.format("{}|{}", mine, "image_id").alias("id"),
        mine,
        pl.all(),
        pl.lit(inputs.snapshot_id).alias("snapshot_id"),
    )


@dataclass(frozen=True)
class WorkerContext:
    """What a worker keeps open."""

    settings: EvaluateSettings
    images: ImageStore
    chat: Chat
    tools: Toolbox
    geocoder: AddressSearch


def open_context(settings: EvaluateSettings, setup: WorkerSetup) -> WorkerContext:
    connections = setup.connections
    tools = open_toolbox(connections, setup.lake.state)
    geocoder = open_recalling(connections.answer_geocoder, setup.responses())
    return WorkerContext(settings, setup.lake.images, Chat(connections.chat), tools, geocoder)


@dataclass
class Rounds:
    """What came of a picture's rounds."""

    estimate: Estimate
    last: dict[int, Said]  # every agent's last answer
    km: dict[int, float | None]  # of it from the truth
    log: list[dict[str, Any]]  # round by round
    outcome: Outcome


async def discuss_rounds(
    swarm: Swarm, rounds: int, error_km: Callable[[str], Awaitable[float | None]], printed: bool = False
) -> Rounds:
    """L rounds of stages 1 and 2, each judged by `error_km`."""
    count = len(swarm.agents)
    done = Rounds(Estimate(count, printed), {}, dict.fromkeys(range(count)), [], Outcome())
    rng = random.Random(stable_seed("rounds", swarm.seed))
    for number in range(1, rounds + 1):
        drawn = [agent for agent in range(count) if rng.random() < done.estimate.chances[agent]]
        new = await swarm.ask([agent for agent in drawn if agent not in done.last], ASK, "answer", done.outcome)
        done.last |= {statement.agent: statement for statement in new}
        first = [done.last[agent] for agent in drawn]
        refined = await swarm.refine(first, done.estimate.links, rng, done.outcome, f" {number}")
        done.last |= {statement.agent: statement for statement in refined}
        done.km |= {statement.agent: await error_km(statement.text) for statement in refined}
        near = {agent: km for agent in drawn if (km := done.km[agent]) is not None and km <= swarm.same_km}
        right = {agent: agent in near for agent in drawn}
        done.estimate.observe(right, done.outcome.reviews)
        done.log.append({"right": right, "reviews": dict(done.outcome.reviews)})
    return done


async def work(item: Row, context: WorkerContext) -> Kept:
    """One picture's rounds. A service that fails raises."""
    settings = context.settings
    picture = await stored_picture(context.images, item, settings.view_max_pixels, settings.view_min_pixels)

    async def error_km(text: str) -> float | None:
        point = await located(settings.agent_recipe, text, item["lat"], item["lon"], context.geocoder)
        return point.error_km

    async def place(text: str) -> tuple[float, float] | None:
        return await named_point(settings.agent_recipe, text, context.geocoder)

    swarm = Swarm(
        context.chat, settings.swarm, picture, place, context.tools, settings.max_tokens, ("learn", item["sha256"])
    )
    learning = settings.swarm.learning
    done = await discuss_rounds(swarm, learning.rounds, error_km, learning.printed_links)
    usage = done.outcome.usage
    row = {
        **{name: item[name] for name in ("swarm_id", "image_id", "snapshot_id", "sha256", "extension")},
        "election_json": json.dumps(done.estimate.election),
        "links_json": json.dumps(done.estimate.links.tolist()),
        "distances_json": json.dumps([done.km[agent] for agent in swarm.agents]),
        "rounds_json": json.dumps(done.log),
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
    }
    return Kept({"swarm_rounds": [row]}, usage)


def swarm_roles(settings: EvaluateSettings) -> tuple[str, ...]:
    """The models of the agents; trained ones are served by the run."""
    return tuple(dict.fromkeys(role for role, _ in settings.swarm.cast if not role.startswith(TRAINED)))


def swarm_services(settings: EvaluateSettings) -> tuple[str, ...]:
    """The services that agents and the reading of their answers ask."""
    search = tool_services(("search_web",)) if settings.swarm.web_search else ()
    return ("chat", *search, *(("answer_geocoder",) if reads_addresses(settings.agent_recipe) else ()))


def _roles(settings: EvaluateSettings) -> tuple[str, ...]:
    return swarm_roles(settings) if learns(settings) else ()


def _services(settings: EvaluateSettings) -> tuple[str, ...]:
    return swarm_services(settings) if learns(settings) else ()


STAGE = Stage(
    name="train.swarm_rounds",
    section="evaluate",
    reads=("labels", "images"),
    writes=("swarm_rounds",),
    items=items,
    work=work,
    open=open_context,
    resources=Resources(cpus=1, concurrency=4, chunk=1),
    services=_services,
    roles=_roles,
    identity=rounds_identity,
    snapshot=True,
    keeps_history=True,  # rounds of other swarms stand beside these
    unhashed=("snapshot_id",),
)
