"""GRPO shared by several processes: groups of unequal length, dead groups and outages count as they do in one process.

The processes are threads here that wait for each other where processes would send; `bench.train_workers` has real ones.
"""

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from schemas.settings.train import GrpoSettings, TrainSettings
from tasks.train.checkpoints import Progress
from tasks.train.fast.families import fast_model
from tasks.train.grpo import Grpo, Reference
from tasks.train.ranks import Ranks, T
from tasks.train.result import CLOCK
from tasks.train.rollouts.source import Episode, Judged
from tasks.train.token_samples import Completion, Sample

HANGS_S = 120.0  # a liveness guard: a process that waits for others which do not come
# Of each prompt the lengths of its rollouts, and what they are worth; None is an outage.
GROUPS: list[tuple[list[int], list[float | None]]] = [
    ([3, 17, 5], [0.0, 1.0, 0.25]),
    ([2, 2, 2], [0.5, 0.5, 0.5]),  # dead: no advantage, but its tokens count
    ([29, 1, 11], [1.0, None, 0.0]),
    ([4, 23, 6], [None, None, None]),
    ([8, 2, 31], [0.0, 0.0, 1.0]),
    ([1, 19, 2], [0.3, 0.2, 0.1]),
]


class Meeting:
    """Where the threads exchange values; every one must come."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count, timeout=HANGS_S)
        self.brought: list[Any] = [None] * count

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self.brought[rank] = value
        self.barrier.wait()
        found = list(self.brought)
        self.barrier.wait()
        return found


class Threads(Ranks):
    """One of several threads that train together."""

    def __init__(self, rank: int, count: int, meeting: Meeting) -> None:
        super().__init__(rank, count)
        object.__setattr__(self, "meeting", meeting)

    def _exchange(self, kind: str, value: Any) -> list[Any]:
        found = self.meeting.exchange(self.rank, (kind, value))  # type: ignore[attr-defined]
        assert {one for one, _ in found} == {kind}, "processes that ask each other different things"
        return [one for _, one in found]

    def totals(self, *values: float) -> list[float]:
        return [float(sum(one)) for one in zip(*self._exchange("totals", values), strict=True)]

    def most(self, value: int) -> int:
        return int(max(self._exchange("most", value)))

    def of_all(self, values: Sequence[T]) -> list[T]:
        return [one for part in self._exchange("of_all", list(values)) for one in part]


class Written:
    """The same rollouts whichever process draws them."""

    def draw(self, prompts: Sequence[Sample], rows: Sequence[Mapping[str, Any]]) -> list[list[Episode]]:
        found = []
        for row in rows:
            rng = np.random.default_rng(row["number"])
            group = []
            for length in GROUPS[row["number"]][0]:
                ids = [int(n) for n in rng.integers(10, 90, length)]
                group.append(Episode(Completion(ids, [True] * length), True, ""))
            found.append(group)
        return found


def scorer(pairs: Sequence[tuple[Episode, Mapping[str, Any]]]) -> list[Judged]:
    found, places = [], dict.fromkeys(range(len(GROUPS)), 0)
    for _, row in pairs:
        number = row["number"]
        found.append(Judged(GROUPS[number][1][places[number]], parts={"part": float(number)}))
        places[number] += 1
    return found


Gradients = list[dict[str, torch.Tensor]]


@pytest.fixture
def steps_of(model: Any, make_sample: Callable[..., Sample]) -> Callable[..., tuple[Gradients, list[dict[str, float]]]]:
    grids: list[tuple[tuple[int, int, int], ...]] = [((1, 4, 4),), (), ((1, 6, 4),), (), (), ((1, 4, 6),)]

    def train(settings: TrainSettings, rows: list[dict[str, Any]], ranks: Ranks) -> tuple[Gradients, list[Any]]:
        mine = copy.deepcopy(model)
        fast = fast_model(mine)
        reference = Reference(fast, False, False)
        with torch.no_grad():  # away from the reference, so that the KL has a gradient
            for p in mine.parameters():
                p.mul_(1.01)
        program = Grpo(
            fast, lambda n: make_sample(n, grids[n], 4 + n), rows, settings, Written(), scorer, reference, ranks
        )
        found, figures = [], []
        for step in range(program.steps):
            mine.zero_grad(set_to_none=True)
            pending = program.gradients(step, Progress())
            figures.append({name: float(value) for name, value in pending.items() if name not in CLOCK})
            found.append(
                {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in mine.named_parameters()}
            )
        return found, figures

    def run(
        count: int, per_generation: int, per_step: int, prompts: int = len(GROUPS), **grpo: Any
    ) -> tuple[Gradients, list[dict[str, float]]]:
        settings = TrainSettings(
            grpo=GrpoSettings(
                group_size=3, prompts_per_generation=per_generation, prompts_per_step=per_step, micro_batch=2,
                kl=0.05, max_completion_tokens=32, **grpo,
            ),
            loader_threads=0, pack_tokens=64,
        )  # fmt: skip
        rows: list[dict[str, Any]] = [{"number": n, "phase": None} for n in range(prompts)]
        meeting = Meeting(count)
        with ThreadPoolExecutor(count) as pool:
            each = [
                pool.submit(train, settings, rows, Threads(rank, count, meeting) if count > 1 else Ranks())
                for rank in range(count)
            ]
            parts = [one.result(timeout=4 * HANGS_S) for one in each]
        assert all(figures == parts[0][1] for _, figures in parts), "every process knows the figures of all"
        together = [
            {name: torch.stack([part[name] for part in of_step]).sum(0) for name in of_step[0]}
            for of_step in zip(*(gradients for gradients, _ in parts), strict=True)
        ]
        return together, parts[0][1]

    return run


@pytest.mark.parametrize(
    ("count", "per_generation", "per_step", "prompts", "loss"),
    [
        (2, 6, 6, 6, "grpo"),
        (2, 6, 6, 6, "dapo"),
        (2, 6, 3, 6, "dr_grpo"),  # shares of one and of two groups
        (3, 2, 1, 4, "grpo"),  # a process without any group, in a generation of two steps
    ],
)
def test_gradients_and_figures_are_those_of_one_process(
    count: int, per_generation: int, per_step: int, prompts: int, loss: str, steps_of: Callable[..., Any]
) -> None:
    alone, figures = steps_of(1, per_generation, per_step, prompts, loss=loss)
    several, theirs = steps_of(count, per_generation, per_step, prompts, loss=loss)
    assert len(alone) == len(several) >= 1
    assert max(float(gradient.abs().max()) for gradient in alone[0].values()) > 1e-4, "there is something to compare"
    for one, other in zip(alone, several, strict=True):
        for name, gradient in one.items():
            torch.testing.assert_close(other[name], gradient, atol=1e-6, rtol=1e-5, msg=name)
    for mine, other in zip(figures, theirs, strict=True):
        mine, other = ({k: v for k, v in one.items() if k != "tokens"} for one in (mine, other))  # blank pictures
        assert other == pytest.approx(mine, abs=1e-6)
