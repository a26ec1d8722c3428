"""One attempt at one picture: the recipe's own way to write replies, or a single agent."""

from dataclasses import dataclass, replace
from typing import Any

from schemas.messages import ChatReply, Message
from schemas.settings.synthesize import SynthesizeSettings
from tasks.agent.asking import Sampling, SingleAgent
from tasks.agent.environment import Ask
from tasks.agent.levels_writer import LevelsWriter
from tasks.agent.observer_pair import ObserverPair
from tasks.agent.picture import Picture
from tasks.agent.proposals import Proposals
from tasks.agent.recipe import Budgets, Recipe
from tasks.agent.recipes.spotsft import answer_lines
from tasks.services.chat import Chat
from tasks.synthesize.rejection import Truth


@dataclass(frozen=True)
class Attempt:
    """Who replies, and the name of that way."""

    writer: str
    ask: Ask


def limits(recipe: Recipe, settings: SynthesizeSettings) -> Budgets:
    """The recipe's budgets with what the settings change."""
    given: dict[str, Any] = {
        "calls": settings.max_tool_calls,
        "turns": settings.max_turns,
        "tokens": settings.max_total_tokens,
        "seconds": settings.max_seconds,
        "cost_usd": settings.max_cost_usd,
    }
    changed = replace(recipe.budgets, **{name: value for name, value in given.items() if value is not None})
    # More calls than the recipe's need more turns to be made in, unless the settings say how many.
    if settings.max_turns is None and settings.max_tool_calls is not None:
        changed = replace(changed, turns=max(changed.turns, changed.calls + 1))
    return changed


def attempt(
    recipe: Recipe,
    settings: SynthesizeSettings,
    chat: Chat,
    picture: Picture,
    truth: Truth,
    notes: str | None,
    seed: int,
) -> Attempt:
    """How one attempt is made. The truth is used by SpotSFT alone, whose answers are the truth; it asks no model."""
    sampling = Sampling(settings.temperature, seed, settings.max_tokens)
    writer = "agent" if settings.single_agent else recipe.writers[0]
    if writer == "truth":
        return Attempt(writer, TrueAnswer(truth, settings.answer_decimals))
    if writer == "levels" and notes is not None:
        return Attempt("notes", LevelsWriter(chat, settings.normalizer, sampling, notes))
    if writer == "levels":
        return Attempt(writer, LevelsWriter(chat, settings.agent, sampling))
    if writer == "proposals":
        proposals = Proposals(chat, recipe, picture, settings.agent, sampling, settings.boxes, settings.queries)
        return Attempt(writer, proposals)
    if writer == "pair":
        return Attempt(writer, ObserverPair(chat, recipe, settings.observer, settings.planner, sampling))
    return Attempt("agent", SingleAgent(chat, settings.agent, sampling))


class TrueAnswer:
    """SpotSFT's only reply: the label in the form the prompt asks for."""

    def __init__(self, truth: Truth, decimals: int) -> None:
        self._truth, self._decimals = truth, decimals

    async def __call__(self, messages: list[Message], tools: object) -> ChatReply:
        address = self._truth.address
        return ChatReply(
            answer_lines(address.country or "", address.city or "", self._truth.lat, self._truth.lon, self._decimals)
        )
