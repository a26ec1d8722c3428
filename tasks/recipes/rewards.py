"""A recipe's reward behind one call: `reward_for(recipe, settings)` for trainers, Pass@K and evaluation."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from schemas.errors import GeofixError
from schemas.settings.reward import RewardSettings
from tasks.agent.environment import Trajectory
from tasks.recipes.recipe import RECIPES, RecipeReward
from tasks.reward.outcome import Excluded, Scored, Truth, truth_of
from tasks.reward.services import RewardDeps, RewardServices
from tasks.services import Connections


def rewarded_recipes() -> list[str]:
    """The names of the recipes that have a reward."""
    return [name for name, recipe in RECIPES.items() if recipe.reward is not None]


def score(
    recipe: str,
    answer_text: str | None,
    truth: Truth,
    deps: RewardDeps | None = None,
    tool_outage: str | None = None,
    trajectory: Trajectory | None = None,
) -> Scored | Excluded:
    """The reward of one answer under a recipe, or its exclusion when a tool or service failed it.

    `tool_outage` is what broke during the rollout itself, if anything did; an answer given without its tools says
    nothing about the policy. `trajectory` is the conversation that led to the answer, if there was one.
    """
    reward = _reward_of(recipe)
    if tool_outage is not None:
        return Excluded(tool_outage)
    if trajectory is not None and trajectory.messages and reward.of_trajectory is not None:
        return reward.of_trajectory(trajectory, truth, deps or RewardDeps())
    return reward.score(answer_text, truth, deps or RewardDeps())


@dataclass(frozen=True)
class Reward:
    """A recipe's reward, ready to be called: `reward(text, lat=…, lon=…, country=…, region=…, city=…)`."""

    recipe: str
    deps: RewardDeps
    concurrency: int = 1

    def __call__(self, text: str | None, tool_outage: str | None = None, **truth: Any) -> Scored | Excluded:
        return score(self.recipe, text, truth_of(truth), self.deps, tool_outage)

    def many(
        self,
        texts: Sequence[str | None],
        rows: Sequence[Mapping[str, Any]],
        outages: Sequence[str | None] | None = None,
        trajectories: Sequence[Trajectory | None] | None = None,
    ) -> list[Scored | Excluded]:
        """The outcomes of several answers, in order; services answer for some of them at the same time."""
        nothing = [None] * len(texts)
        cases = list(zip(texts, rows, outages or nothing, trajectories or nothing, strict=True))

        def score_case(case: tuple[str | None, Mapping[str, Any], str | None, Trajectory | None]) -> Scored | Excluded:
            text, row, outage, trajectory = case
            return score(self.recipe, text, truth_of(row), self.deps, outage, trajectory)

        if self.concurrency == 1 or len(cases) < 2:
            return [score_case(case) for case in cases]
        with ThreadPoolExecutor(min(self.concurrency, len(cases))) as pool:
            return list(pool.map(score_case, cases))


def reward_services(recipe: str, settings: RewardSettings) -> tuple[str, ...]:
    """The services that a recipe's reward asks under these settings."""
    return _reward_of(recipe).asks(settings)


def reward_roles(recipe: str, settings: RewardSettings) -> tuple[str, ...]:
    """The model roles that a recipe's reward asks under these settings."""
    return _reward_of(recipe).roles(settings)


def reward_words(recipe: str, settings: RewardSettings) -> tuple[str, ...]:
    """What the models are told that a recipe's reward asks under these settings."""
    return _reward_of(recipe).words(settings)


def reward_for(recipe: str, settings: RewardSettings | None = None, connections: Connections | None = None) -> Reward:
    """The recipe's reward with the services its settings name; `connections` are needed where it asks any."""
    settings = settings or RewardSettings()
    if not reward_services(recipe, settings):
        return Reward(recipe, RewardDeps(settings))
    if connections is None:
        raise GeofixError(f"the reward of recipe '{recipe}' asks services: give reward_for the connections")
    return Reward(recipe, RewardServices(connections, settings).deps(), settings.concurrency)


def _reward_of(recipe: str) -> RecipeReward:
    reward = RECIPES[recipe].reward if recipe in RECIPES else None
    if reward is None:
        known = ", ".join(rewarded_recipes())
        raise GeofixError(f"recipe '{recipe}' has no reward to train with; those that have are {known}")
    return reward
