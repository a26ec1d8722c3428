"""Sampling a token from logits: temperature, top-k, top-p, and the log-probability GRPO needs."""

from dataclasses import dataclass

import numpy as np
import torch

from schemas.errors import GeofixError


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Temperature 0 takes the likeliest token."""

    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    seeded: bool = False  # each prompt by its own seed, so that others beside it change nothing

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise GeofixError(f"temperature is {self.temperature}; it must be 0 (greedy) or more")
        if self.top_k < 0:
            raise GeofixError(f"top_k is {self.top_k}; it must be 0 (all tokens) or more")
        if not 0 < self.top_p <= 1:
            raise GeofixError(f"top_p is {self.top_p}; it must be above 0 and at most 1")


def restrict(log_probs: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Minus infinity for tokens outside the top k and outside the smallest set that holds top_p of what is left."""
    if sampling.top_k:
        least = log_probs.topk(min(sampling.top_k, log_probs.shape[-1])).values[:, -1:]
        log_probs = log_probs.masked_fill(log_probs < least, float("-inf"))
    if sampling.top_p < 1:
        ordered, order = log_probs.sort(descending=True)
        shares = ordered.softmax(-1)
        # A token goes if those before it hold top_p already; the likeliest always stays.
        beyond = shares.cumsum(-1) - shares >= sampling.top_p
        log_probs = log_probs.masked_fill(torch.zeros_like(beyond).scatter(1, order, beyond), float("-inf"))
    return log_probs


def chances(seed: int | None, count: int) -> torch.Tensor:
    """Numbers from 0 up to 1 for the tokens of one rollout."""
    return torch.from_numpy(np.random.default_rng(seed).random(count, dtype=np.float32))


def draw(
    logits: torch.Tensor,
    sampling: Sampling,
    banned: torch.Tensor | None = None,
    chance: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token for each row, and its log-probability at this temperature before any restriction (as TRL defines it).

    `banned` holds tokens that are never drawn: a picture's placeholder in a completion would need a picture.
    `chance` is a number for each row, from 0 up to 1, that decides it.
    """
    values = logits.float()
    log_probs = (values / (sampling.temperature or 1.0)).log_softmax(-1)
    chosen = log_probs if banned is None else log_probs.index_fill(1, banned, float("-inf"))
    if sampling.temperature > 0 and chance is not None:
        weights = restrict(chosen, sampling).softmax(-1)
        below = weights.cumsum(-1)
        tokens = torch.searchsorted(below, chance[:, None] * below[:, -1:], right=True).clamp_(
            max=weights.shape[-1] - 1
        )
        # Rounding may lead beyond the last token that has a chance.
        tokens = torch.where(weights.gather(1, tokens) > 0, tokens, weights.argmax(-1, keepdim=True))
        return tokens[:, 0], log_probs.gather(1, tokens)[:, 0]
    if sampling.temperature > 0:
        # argmax(log p - log e) with e exponential draws from p: no host synchronization, unlike multinomial.
        noise = torch.empty_like(log_probs).exponential_().clamp_min_(1e-20).log_()
        chosen = restrict(chosen, sampling) - noise
    tokens = chosen.argmax(-1)
    return tokens, log_probs.gather(1, tokens[:, None])[:, 0]
