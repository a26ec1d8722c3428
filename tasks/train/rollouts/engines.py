"""What writes rollouts with the policy's weights: one interface, and the embedded engine behind it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from tasks.train.fast.model import FastModel
from tasks.train.plain import PlainModel
from tasks.train.rollouts.engine import Rollout, RolloutEngine
from tasks.train.rollouts.plain import PlainEngine
from tasks.train.rollouts.sampling import Sampling
from tasks.train.token_samples import Sample
from tasks.train.trainable import TrainableModel

ROUND = 64  # prompt capacities are multiples: fewer engines, and fewer graphs to capture


class RolloutEngines(ABC):
    """Writes rollouts with the policy's weights as they were when last refreshed."""

    @abstractmethod
    def refresh_weights(self) -> None:
        """Called before each draw."""

    @abstractmethod
    def stream(
        self, prompts: Sequence[Sample], size: int, new_tokens: int, sampling: Sampling
    ) -> Iterator[tuple[int, list[Rollout]]]:
        """(number of the prompt, its `size` rollouts) as they end."""

    @abstractmethod
    def serve(
        self, take: Callable[[int, bool], Sample | None], longest: int, count: int, new_tokens: int, sampling: Sampling
    ) -> Iterator[tuple[int, list[Rollout]]]:
        """A rollout of each prompt as prompts come, numbered in the order they were taken.

        `take(most, waits)` gives the next prompt of at most `most` tokens. None means that there is none at the
        moment; with `waits`, as nothing is being written, that there will be none. `longest` tokens and `count` prompts
        are expected.
        """

    @abstractmethod
    def clear(self) -> None:
        """Free what a training step needs the memory of."""

    def generate(
        self, prompts: Sequence[Sample], size: int, new_tokens: int, sampling: Sampling
    ) -> list[list[Rollout]]:
        """`size` rollouts of each prompt, in the prompts' order."""
        rollouts = dict(self.stream(prompts, size, new_tokens, sampling))
        return [rollouts[number] for number in range(len(prompts))]


class Engines(RolloutEngines):
    """Embedded engines by capacity: a longer prompt than any before makes a larger engine."""

    def __init__(self, fast: TrainableModel, end_tokens: Sequence[int], rollouts: int) -> None:
        """`rollouts` are decoded side by side, at most."""
        self._fast, self._ends, self._rollouts = fast, list(end_tokens), rollouts
        self._engines: dict[tuple[int, Sampling], RolloutEngine | PlainEngine] = {}

    def refresh_weights(self) -> None:
        """Weights are read where they are."""

    def stream(
        self, prompts: Sequence[Sample], size: int, new_tokens: int, sampling: Sampling
    ) -> Iterator[tuple[int, list[Rollout]]]:
        longest = max(len(prompt.ids) for prompt in prompts)
        return self.engine(longest, len(prompts), size, new_tokens, sampling).generate(prompts)

    def serve(
        self, take: Callable[[int, bool], Sample | None], longest: int, count: int, new_tokens: int, sampling: Sampling
    ) -> Iterator[tuple[int, list[Rollout]]]:
        """A rollout of each prompt as prompts come; those longer than the engine are left for a larger one."""
        engine = self.engine(longest, count, 1, new_tokens, sampling)
        return engine.serve(lambda waits: take(engine.prompt_tokens, waits))

    def engine(
        self, longest: int, prompts: int, size: int, new_tokens: int, sampling: Sampling
    ) -> RolloutEngine | PlainEngine:
        """An engine for prompts of at most this length; it may hold longer ones too."""
        groups = min(max(1, self._rollouts // size), prompts)
        key = (size, sampling)
        engine = self._engines.get(key)
        if (
            engine is None
            or engine.prompt_tokens < longest
            or engine.groups < groups
            or engine.new_tokens != new_tokens
        ):
            capacity = -(-longest // ROUND) * ROUND
            if engine is not None:
                capacity, groups = max(capacity, engine.prompt_tokens), max(groups, engine.groups)
                del self._engines[key], engine  # its buffers are freed before the larger ones are made
            engine = self._make(size, groups, capacity, new_tokens, sampling)
            self._engines[key] = engine
        return engine

    def _make(
        self, size: int, groups: int, capacity: int, new_tokens: int, sampling: Sampling
    ) -> RolloutEngine | PlainEngine:
        if isinstance(self._fast, PlainModel):
            return PlainEngine(self._fast, size, groups, capacity, new_tokens, self._ends, sampling)
        assert isinstance(self._fast, FastModel)
        return RolloutEngine(self._fast, size, groups, capacity, new_tokens, self._ends, sampling)

    def clear(self) -> None:
        """Free the key caches, as a training step needs the memory."""
        self._engines.clear()
