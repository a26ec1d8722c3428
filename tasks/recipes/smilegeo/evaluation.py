"""The swarm and its baselines as one evaluation method: run once, every framework gives a prediction."""

import json
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import polars as pl

from schemas.messages import Message, Usage, text_part
from schemas.settings.evaluate import EvaluateSettings
from tasks.lake import Lake
from tasks.recipes.evaluation import Deliberated, EvaluationContext, EvaluationMethod, answered
from tasks.recipes.smilegeo.baselines import BASELINE_WORDS, BASELINES
from tasks.recipes.smilegeo.election import FILE, newest_election
from tasks.recipes.smilegeo.election import STAGE as ELECTION
from tasks.recipes.smilegeo.form import ASK, DISCUSS, QUESTION, ROUND_WORDS
from tasks.recipes.smilegeo.rounds import STAGE as ROUNDS
from tasks.recipes.smilegeo.rounds import learns, swarm_roles, swarm_services
from tasks.recipes.smilegeo.swarm import Matrix, Outcome, Said, Swarm, equal_links

SWARM = "swarm"


def baseline(name: str) -> str:
    """The policy of a baseline."""
    return f"{SWARM} {name}"


def agent_alone(agent: str) -> str:
    """The policy of one agent of the swarm alone."""
    return f"{SWARM} agent {agent}"


class SwarmEvaluation(EvaluationMethod):
    """The swarm beside each agent alone and other frameworks of agents (Tables 1 and 2)."""

    name = SWARM
    recipe = "smilegeo"
    training = (ROUNDS, ELECTION)

    def policies(self, settings: EvaluateSettings) -> tuple[str, ...]:
        return (SWARM,) if settings.swarm.agents else ()

    def evaluations(self, policy: str, settings: EvaluateSettings) -> tuple[str, ...]:
        named = [name for name in settings.swarm.baselines if name != "single"]
        alone = settings.swarm.agents if "single" in settings.swarm.baselines else ()
        return *map(agent_alone, alone), *map(baseline, named), SWARM

    def identity(self, settings: EvaluateSettings) -> dict[str, Any]:
        return {name: value for name, value in settings.swarm.identity().items() if name != "learning"}

    def learns(self, settings: EvaluateSettings) -> bool:
        return learns(settings)

    def roles(self, settings: EvaluateSettings) -> tuple[str, ...]:
        return swarm_roles(settings)

    def words(self, settings: EvaluateSettings) -> Any:
        return [ROUND_WORDS, DISCUSS, BASELINE_WORDS]

    def services(self, settings: EvaluateSettings) -> tuple[str, ...]:
        return swarm_services(settings) if settings.swarm.agents else ()

    def bound(self, settings: EvaluateSettings, models: pl.DataFrame) -> EvaluateSettings:
        """The settings with the id of the network that elects."""
        swarm = settings.swarm
        if not swarm.agents or swarm.election == "fixed":
            return settings
        chosen = swarm.model_copy(update={"network": newest_election(models, settings)})
        return settings.model_copy(update={"swarm": chosen})

    def open(self, settings: EvaluateSettings, lake: Lake) -> Any:
        """The network that elects; None: K agents are drawn."""
        if not settings.swarm.agents or settings.swarm.election == "fixed":
            return None
        from tasks.recipes.smilegeo.network import Elector

        return Elector.load(lake.blobs.pull(f"models/{settings.swarm.network}") / FILE)

    async def answer(self, context: EvaluationContext) -> tuple[list[Deliberated], Usage]:
        """Every agent alone, the baselines and the swarm."""
        settings = context.settings
        swarm = Swarm(
            context.chat,
            settings.swarm,
            context.picture,
            context.locate,
            context.tools,
            settings.max_tokens,
            context.seed,
        )
        count = len(swarm.agents)
        methods: dict[str, Callable[[], Awaitable[Outcome]]] = {
            **{agent_alone(name): partial(_alone, swarm, at) for at, name in enumerate(settings.swarm.agents)},
            **{baseline(name): partial(run, swarm) for name, run in BASELINES.items()},
        }
        deliberations, usage = [], Usage()
        for name in self.evaluations(SWARM, settings):
            started = time.monotonic()
            if name == SWARM:
                outcome = await swarm.locate(*_election(context.opened, context.picture.view, count))
            else:
                outcome = await methods[name]()
            usage += outcome.usage
            told = {"answerers": outcome.answerers, "reviews": outcome.reviews}
            details = {"method": outcome.how, "rounds": outcome.rounds, "answers_json": json.dumps(told)}
            attempt = answered(
                _conversation(context, outcome.log), outcome.text, outcome.usage, time.monotonic() - started
            )
            deliberations.append(Deliberated(name, attempt, details))
        return deliberations, usage


async def _alone(swarm: Swarm, agent: int) -> Outcome:
    """One agent alone."""
    outcome = Outcome(answerers=[agent], how="single")
    outcome.finals = await swarm.ask([agent], ASK, "answer", outcome)
    outcome.text = outcome.finals[0].text
    return outcome


def _election(elector: Any, jpeg: bytes, agents: int) -> tuple[list[float], Matrix]:
    """Election and links by the learned network; without one all agents are equal."""
    if elector is None:
        return [0.5] * agents, equal_links(agents)
    predicted: tuple[list[float], Matrix] = elector.predict(jpeg)
    return predicted


def _conversation(context: EvaluationContext, log: list[Said]) -> list[Message]:
    agents = context.settings.swarm.agents
    question: Message = {"role": "user", "content": [context.reference, text_part(QUESTION)]}
    turns = (f"{agents[statement.agent]} ({statement.when}): {statement.text}" for statement in log)
    return [question, *({"role": "assistant", "content": text} for text in turns)]


EVALUATION = SwarmEvaluation()
