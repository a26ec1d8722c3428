"""Where GRPO's rollouts come from, and what they earn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any, Protocol

from schemas.messages import Message
from schemas.settings.reward import RewardSettings
from tasks.agent.environment import Trajectory
from tasks.agent.grounding import ground
from tasks.agent.toolbox import CallRecord
from tasks.recipes.rewards import reward_for
from tasks.reward.outcome import Excluded, truth_of
from tasks.services import Connections
from tasks.train.rollouts.engine import Rollout
from tasks.train.rollouts.engines import RolloutEngines
from tasks.train.rollouts.sampling import Sampling
from tasks.train.token_samples import Completion, Sample


@dataclass(frozen=True)
class Episode:
    """One rollout of a prompt: what was written, and how it ended."""

    completion: Completion
    is_finished: bool  # ended by itself rather than cut
    answer: str  # the text that is scored
    tool_calls: int = 0
    outage: str | None = None  # a tool that failed for reasons of its own
    tool_misses: int = 0  # questions that nothing was recorded for
    log_probs: Sequence[float] | None = None  # of the policy's tokens, as the engine drew them; nan: unknown
    tool_errors: int = 0  # calls that were not valid, parseable and executable
    messages: tuple[Message, ...] = ()  # of a rollout with tools: what was said and what they gave
    calls: tuple[CallRecord, ...] = ()

    @property
    def trajectory(self) -> Trajectory:
        return Trajectory(self.messages, calls=self.calls, final_text=self.answer)


@dataclass(frozen=True)
class Judged:
    """What a rollout is worth."""

    reward: float | None  # None: an outage excludes it from its group
    reason: str | None = None  # why the answer could not be read, or which outage excluded it
    parts: Mapping[str, float] = field(default_factory=dict)
    error_km: float | None = None  # of the answer from the truth, where the reward measures it
    turns: tuple[float, ...] = ()  # of the reward, what each reply earned; the rest is earned by the last

    def earned(self, replies: int) -> list[float] | None:
        """What each of so many replies earned; None: the rollout is excluded."""
        if self.reward is None:
            return None
        paid = [*self.turns[:replies], *[0.0] * (replies - len(self.turns))]
        paid[-1] += self.reward - sum(paid)
        return paid


# Rollouts with the sample each belongs to -> what each is worth.
Scorer = Callable[[Sequence[tuple[Episode, Mapping[str, Any]]]], list[Judged]]


class Rollouts(Protocol):
    """Draws G rollouts of each prompt from the policy as it is now."""

    def draw(
        self, prompts: Sequence[Sample], rows: Sequence[Mapping[str, Any]], has_weights: Event | None = None
    ) -> list[list[Episode]]:
        """`has_weights` is set as soon as the policy may change: the engine has its weights."""


class EmbeddedRollouts:
    """Rollouts without tools: one completion each, G of them from a prompt that is computed once."""

    def __init__(
        self, engines: RolloutEngines, decode: Any, size: int, new_tokens: int, temperature: float, keep: bool = True
    ) -> None:
        self._engines, self._decode = engines, decode
        self._size, self._new_tokens, self._sampling = size, new_tokens, Sampling(temperature)
        self._keep = keep  # key caches between two generations

    def draw(
        self, prompts: Sequence[Sample], rows: Sequence[Mapping[str, Any]], has_weights: Event | None = None
    ) -> list[list[Episode]]:
        self._engines.refresh_weights()
        if has_weights is not None:
            has_weights.set()
        groups = self._engines.generate(prompts, self._size, self._new_tokens, self._sampling)
        if not self._keep:
            self._engines.clear()
        return [[self._episode(rollout) for rollout in group] for group in groups]

    def _episode(self, rollout: Rollout) -> Episode:
        completion = Completion(rollout.ids, [True] * len(rollout.ids))
        return Episode(completion, rollout.is_finished, self._decode(rollout.ids), log_probs=rollout.log_probs)


def _with_process(judged: Judged, episode: Episode, truth: Mapping[str, Any], weight: float) -> Judged:
    """The reward with the process term, where it is on and the rollout has a conversation to look at."""
    if not weight or judged.reward is None or not episode.messages:
        return judged
    term = weight * ground(episode.trajectory, truth_of(truth)).process_reward
    return replace(judged, reward=judged.reward + term, parts={**judged.parts, "grounding": term})


def recipe_scorer(
    recipe: str, settings: RewardSettings | None = None, connections: Connections | None = None
) -> Scorer:
    """The recipe's reward with the services it asks; refused at once where it has none."""
    reward = reward_for(recipe, settings, connections)
    weight = settings.grounding if settings else 0.0

    def scorer(pairs: Sequence[tuple[Episode, Mapping[str, Any]]]) -> list[Judged]:
        episodes, rows = [episode for episode, _ in pairs], [row for _, row in pairs]
        outages, spoken = [episode.outage for episode in episodes], [episode.trajectory for episode in episodes]
        scores = reward.many([episode.answer for episode in episodes], rows, outages, spoken)
        return [
            Judged(None, scored.reason)
            if isinstance(scored, Excluded)
            else _with_process(
                Judged(scored.reward, scored.reason, scored.parts, scored.error_km, scored.turns), episode, row, weight
            )
            for scored, episode, row in zip(scores, episodes, rows, strict=True)
        ]

    return scorer
