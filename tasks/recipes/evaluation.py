"""Evaluations that ask about a picture several times before they answer; a folder offers one as `EVALUATION`.

What such a method learns beforehand are steps of `train` of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from schemas.messages import Message, Usage
from schemas.recipes import package_places
from schemas.settings.evaluate import EvaluateSettings
from tasks.agent.attempt import Attempt
from tasks.agent.environment import Trajectory
from tasks.agent.picture import Picture
from tasks.agent.prompt import Prompt
from tasks.agent.toolbox import Toolbox
from tasks.lake import Lake
from tasks.recipes.recipe import recipe_module
from tasks.runtime.stage import Stage
from tasks.services.chat import Chat


@dataclass(frozen=True)
class EvaluationContext:
    """What a method is given for one picture. `error_of` is for figures about finished answers, never for a prompt."""

    settings: EvaluateSettings
    policy: str
    chat: Chat
    tools: Toolbox
    prompt: Prompt
    picture: Picture
    reference: dict[str, Any]  # the picture as stored messages name it
    seed: str
    error_of: Callable[[str], Awaitable[float | None]]  # kilometres from the truth; None: the answer names no point
    locate: Callable[[str], Awaitable[tuple[float, float] | None]]  # the point that an answer names, without the truth
    opened: Any = None  # what the method's `open` gave


@dataclass(frozen=True)
class Deliberated:
    """One evaluation's answer, and what the table of deliberations keeps of how it came about."""

    name: str
    attempt: Attempt
    details: dict[str, Any] = field(default_factory=dict)
    mean_of: tuple[Attempt, ...] = ()  # attempts whose mean is the score, the first of them `attempt`


class EvaluationMethod(ABC):
    """A family of evaluations over the same pictures: run once, it gives one prediction for each of them."""

    name: str  # of its step, `evaluate.NAME`, and of its section of the settings
    training: tuple[Stage, ...] = ()  # steps of `train` that come before it; their settings are those of `evaluate`
    recipe: str | None = None  # in whose form its answers are, whatever the policy; None: as the policy answers

    @abstractmethod
    def policies(self, settings: EvaluateSettings) -> tuple[str, ...]:
        """The policies it is applied to, as the settings name them; none: it is not run."""

    @abstractmethod
    def evaluations(self, policy: str, settings: EvaluateSettings) -> tuple[str, ...]:
        """The names of its predictions for one policy."""

    @abstractmethod
    def identity(self, settings: EvaluateSettings) -> dict[str, Any]:
        """The settings of its own that its answers depend on."""

    @abstractmethod
    def roles(self, settings: EvaluateSettings) -> tuple[str, ...]:
        """The models it asks."""

    @abstractmethod
    def words(self, settings: EvaluateSettings) -> Any:
        """What those models are told, beyond the policies' own prompt."""

    def learns(self, settings: EvaluateSettings) -> bool:
        """Whether its steps of training have something to do."""
        return False

    def services(self, settings: EvaluateSettings) -> tuple[str, ...]:
        """The services it asks beside those of the policies."""
        return ()

    def bound(self, settings: EvaluateSettings, models: pl.DataFrame) -> EvaluateSettings:
        """The settings with the ids of what they take from the table of models, so that answers depend on it."""
        return settings

    def open(self, settings: EvaluateSettings, lake: Lake) -> Any:
        """What a worker keeps open for it."""
        return None

    @abstractmethod
    async def answer(self, context: EvaluationContext) -> tuple[list[Deliberated], Usage]:
        """The answers to one picture, one for each of its evaluations, and what all of it used."""


def answered(messages: list[Message], text: str, usage: Usage, seconds: float) -> Attempt:
    """An answer that came out of a conversation, as predictions store one."""
    return Attempt(text, Trajectory(tuple(messages), final_text=text, usage=usage), seconds)


def evaluation_methods() -> dict[str, EvaluationMethod]:
    """The methods of all recipes by name, in the order of their names."""
    folders = {path.name for place in package_places() for path in place.iterdir() if path.is_dir()}
    modules = (recipe_module(folder) for folder in sorted(folders))
    methods = [module.EVALUATION for module in modules if hasattr(module, "EVALUATION")]
    return {method.name: method for method in sorted(methods, key=lambda evaluated: str(evaluated.name))}


def training_steps(settings: EvaluateSettings | None = None) -> list[Stage]:
    """The methods' steps of training: all of them, or those that have something to do under the settings."""
    methods = evaluation_methods().values()
    return [step for method in methods if settings is None or method.learns(settings) for step in method.training]
