"""What a rollout is worth in its group: GRPO's advantage, equal to verl's, or one of two for pass@k.

The two of pass@k ask what a rollout adds to the best of k: `max(S) - max(S without it)`, averaged over sets S of k
rollouts of its group that hold it. Rewards may be any numbers, not only right or wrong.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

EPSILON = 1e-6
Estimator = Literal["grpo", "pass_at_k", "pkpo"]


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


def advantages(
    rewards: ArrayLike, groups: Sequence[Hashable] | NDArray[Any], estimator: Estimator = "grpo", k: int = 4
) -> Advantages:
    """The advantages of rollouts by the named estimator; a NaN reward is an excluded rollout, as in `group_advantages`.

    Those of pass@k are not divided by a deviation: in both papers the difference is the gradient's weight.
    """
    if estimator == "grpo":
        return group_advantages(rewards, groups)
    reward = np.asarray(rewards, dtype=np.float64).ravel()
    used = ~np.isnan(reward)
    values = np.zeros_like(reward)
    members: dict[Hashable, list[int]] = {}
    for number, group in enumerate(groups):
        if used[number]:
            members.setdefault(group, []).append(number)
    weigh: Callable[[NDArray[np.float64], int], NDArray[np.float64]]
    weigh = blocks_of_k if estimator == "pass_at_k" else every_set_of_k
    for numbers in members.values():
        values[numbers] = weigh(reward[numbers], k)
    return Advantages(values, used)


def turn_advantages(
    earned: Sequence[Sequence[float] | None],
    groups: Sequence[Hashable],
    estimator: Estimator = "grpo",
    k: int = 4,
) -> list[tuple[float, ...]]:
    """The advantage of each reply of each rollout, of which `earned` says what it earned; None: an excluded rollout.

    A reply is worth what is earned from it on, compared with what the group's others earned from the same reply on;
    one that had ended by then counts with what its last reply earned. Where all is earned by the last replies, each
    reply has its rollout's advantage.
    """
    returns = [None if one is None else np.cumsum(list(one)[::-1])[::-1] for one in earned]
    longest = max((len(one) for one in returns if one is not None), default=1)
    by_reply = [
        advantages(
            [math.nan if one is None else one[min(number, len(one) - 1)] for one in returns], groups, estimator, k
        ).values
        for number in range(longest)
    ]
    return [
        tuple(float(by_reply[number][rollout]) for number in range(1 if one is None else len(one)))
        for rollout, one in enumerate(returns)
    ]


def blocks_of_k(rewards: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """Pass@K-GRPO (Tang et al. 2025, the leave-one-out estimator): sets S are the group's blocks of k, in order.

    Excluded rollouts may leave a last block of fewer; a rollout alone in one is compared with a reward of 0.
    """
    advantages = np.empty_like(rewards)
    for start in range(0, len(rewards), k):
        block = rewards[start : start + k]
        others = [np.delete(block, at) for at in range(len(block))]
        advantages[start : start + k] = [block.max() - (rest.max() if len(rest) else 0.0) for rest in others]
    return advantages


def every_set_of_k(rewards: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """PKPO (Walder and Karkhanis 2025, eq. 33, s^(loo-1)): all sets S of k rollouts, over C(n, k).

    Only sets in which the rollout is the best count. With rewards in rising order g_0 .. g_(n-1), there are
    C(j, k - 2) sets with i the best and j the second: s_i = sum over j < i of C(j, k - 2) (g_i - g_j) / C(n, k).
    """
    n, k = len(rewards), min(k, len(rewards))
    if k < 2:
        return rewards.copy()
    order = np.argsort(rewards, kind="stable")
    rising = rewards[order]
    sets = np.array([math.comb(j, k - 2) for j in range(n)], dtype=np.float64)
    below = np.concatenate(([0.0], np.cumsum(sets)[:-1]))
    weighted = np.concatenate(([0.0], np.cumsum(sets * rising)[:-1]))
    advantages = np.empty_like(rewards)
    advantages[order] = (below * rising - weighted) / math.comb(n, k)
    return advantages
