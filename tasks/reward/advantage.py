"""GRPO's group advantage, equal to verl's `compute_grpo_outcome_advantage`."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

EPSILON = 1e-6


@dataclass(frozen=True)
class Advantages:
    """One advantage a rollout; an excluded rollout has 0 and is counted."""

    values: NDArray[np.float64]
    used: NDArray[np.bool_]


def group_advantages(
    rewards: ArrayLike, groups: Sequence[Hashable] | NDArray[Any], epsilon: float = EPSILON
) -> Advantages:
    """(r - mean) / (std + epsilon) inside each group, std unbiased (SpotAgent eq. 9).

    A NaN reward is a rollout that an outage excluded: it takes no part in its group's mean and deviation. A group
    of one has, as in verl, mean 0 and deviation 1, so its advantage is about its reward.
    """
    reward = np.asarray(rewards, dtype=np.float64).ravel()
    if len(groups) != len(reward):
        raise ValueError(f"{len(reward)} rewards but {len(groups)} group ids")
    used = ~np.isnan(reward)
    if not np.isfinite(reward[used]).all():
        raise ValueError("a reward is infinite")
    numbers: dict[Hashable, int] = {}
    member = np.fromiter(
        (numbers.setdefault(group, len(numbers)) for group in groups), dtype=np.intp, count=len(reward)
    )
    size = np.bincount(member[used], minlength=len(numbers))
    counted = np.maximum(size, 1)
    mean = np.bincount(member[used], weights=reward[used], minlength=len(numbers)) / counted
    # Centred before squaring: sums of squares would lose the digits of nearly equal rewards.
    centred = reward - mean[member]
    square = np.bincount(member[used], weights=centred[used] ** 2, minlength=len(numbers))
    deviation = np.sqrt(square / np.maximum(size - 1, 1))
    single = size == 1
    mean[single], deviation[single] = 0.0, 1.0
    values = np.where(used, (reward - mean[member]) / (deviation[member] + epsilon), 0.0)
    return Advantages(values, used)
