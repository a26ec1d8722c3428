"""smileGeo: a swarm of agents that elects, reviews and discusses, beside every agent alone, a vote and a debate."""

import json
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np

from schemas.messages import Message, Usage, text_part
from schemas.settings.evaluate import EvaluateSettings
from tasks.recipes.evaluation import Deliberated, EvaluationContext, EvaluationMethod, answered
from tasks.recipes.smilegeo.outcomes import DEBATE, SWARM, VOTE, agent_alone, learn
from tasks.recipes.smilegeo.swarm import Outcome, Swarm

__all__ = ["EVALUATION"]


class SwarmEvaluation(EvaluationMethod):
    """The swarm and its baselines; `learn` fits its election to answers that the lake holds."""

    name = SWARM
    learn = staticmethod(learn)

    def policies(self, settings: EvaluateSettings) -> tuple[str, ...]:
        return (SWARM,) if settings.swarm.agents else ()

    def evaluations(self, policy: str, settings: EvaluateSettings) -> tuple[str, ...]:
        return *(agent_alone(agent) for agent in settings.swarm.agents), VOTE, DEBATE, SWARM

    def identity(self, settings: EvaluateSettings) -> dict[str, Any]:
        return settings.swarm.model_dump(mode="json")

    def roles(self, settings: EvaluateSettings) -> tuple[str, ...]:
        return settings.swarm.agents

    def open(self, settings: EvaluateSettings) -> Any:
        """The network that elects; None: all agents are equal."""
        if not settings.swarm.network:
            return None
        from tasks.recipes.smilegeo.learning import load_for

        return load_for(settings.swarm.network, len(settings.swarm.agents))

    async def answer(self, context: EvaluationContext) -> tuple[list[Deliberated], Usage]:
        """Every agent alone, the vote, the debate and the swarm."""
        chosen, picture, seed = context.settings.swarm, context.picture, context.seed
        swarm = Swarm(
            context.chat,
            chosen.agents,
            chosen.answerers,
            chosen.reviewers,
            chosen.rounds,
            chosen.context_chars,
            context.settings.max_tokens,
            chosen.temperature,
            chosen.same_km,
        )
        election, links = _election(context.opened, picture.view, len(chosen.agents))
        asked: list[Callable[[], Awaitable[Outcome]]] = [
            *(partial(swarm.single, picture, number, seed) for number in range(len(chosen.agents))),
            partial(swarm.vote, picture, seed),
            partial(swarm.debate, picture, chosen.debate_rounds, seed),
            partial(swarm.locate, picture, election, links, seed),
        ]
        found, usage = [], Usage()
        for name, ask in zip(self.evaluations(SWARM, context.settings), asked, strict=True):
            started = time.monotonic()
            outcome = await ask()
            usage += outcome.usage
            details: dict[str, Any] = {"method": outcome.how, "rounds": outcome.rounds}
            if outcome.reviews:
                details["answers_json"] = json.dumps({"answerers": outcome.answerers, "reviews": outcome.reviews})
            told = _conversation(context, outcome)
            attempt = answered(told, outcome.text, outcome.usage, time.monotonic() - started)
            found.append(Deliberated(name, attempt, details))
        return found, usage


def _election(network: Any, jpeg: bytes, agents: int) -> tuple[list[float], np.ndarray]:
    """Election and links by the learned network; without one all agents are equal."""
    if network is None:
        return [0.5] * agents, np.ones((agents, agents)) - np.eye(agents)
    from tasks.recipes.smilegeo.learning import predict

    return predict(network, jpeg)


def _conversation(context: EvaluationContext, outcome: Outcome) -> list[Message]:
    agents = context.settings.swarm.agents
    question: Message = {"role": "user", "content": [context.reference, text_part("Where was this picture taken?")]}
    return [
        question,
        *({"role": "assistant", "content": f"{agents[one.agent]} ({one.when}): {one.text}"} for one in outcome.log),
    ]


EVALUATION = SwarmEvaluation()
