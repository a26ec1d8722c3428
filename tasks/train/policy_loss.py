"""GRPO's objective on log-probabilities: clipped ratios times advantages, and a low-variance KL to the reference."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True)
class Objective:
    """The loss of some tokens and what it is made of, each weighted as the loss is."""

    loss: torch.Tensor
    kl: torch.Tensor
    clipped: torch.Tensor  # weight of tokens whose ratio left the bounds and no longer counts


def objective(
    new: torch.Tensor,
    old: torch.Tensor,
    reference: torch.Tensor | None,
    advantages: torch.Tensor,
    weights: torch.Tensor,
    clip: float,
    kl: float,
) -> Objective:
    """Sum over tokens of weight x (-min(r A, clip(r) A) + kl (exp(d) - d - 1)), d = log reference - log policy.

    r is the ratio of the policy to the one that drew the token. The KL is the k3 estimator.
    """
    ratio = torch.exp(new - old)
    bounded = ratio.clamp(1 - clip, 1 + clip)
    gain = torch.minimum(ratio * advantages, bounded * advantages)
    divergence = torch.zeros_like(new)
    if reference is not None:
        difference = reference - new
        divergence = torch.exp(difference) - difference - 1
    is_cut = (ratio * advantages > bounded * advantages).float()
    loss = (weights * (kl * divergence - gain)).sum()
    return Objective(loss, (weights * divergence.detach()).sum(), (weights * is_cut).sum())


def token_weights(
    lengths: Sequence[int],
    is_used: Sequence[bool],
    loss: Literal["grpo", "dapo", "dr_grpo"],
    longest: int,
    totals: Callable[..., Sequence[float]] = lambda *values: values,
) -> list[float]:
    """The weight of each token of every completion of an optimizer step; a completion that is not used has none.

    `totals` sums over the processes that share the step.
    """
    used = [length for length, used in zip(lengths, is_used, strict=True) if used and length]
    count, tokens = totals(len(used), sum(used))
    if not count:
        return [0.0] * len(lengths)
    return [
        0.0
        if not is_one_used or not length
        else 1.0 / (count * length)
        if loss == "grpo"
        else 1.0 / tokens
        if loss == "dapo"
        else 1.0 / (count * longest)
        for length, is_one_used in zip(lengths, is_used, strict=True)
    ]
