"""Learning rates by step, as transformers' schedulers give them."""

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def rate_share(step: int, steps: int, warmup_share: float, schedule: Schedule) -> float:
    """The share of the highest rate that the optimizer step number `step` (from 0) is made with."""
    warmup = math.ceil(steps * warmup_share)
    if step < warmup:
        return step / max(1, warmup)
    if schedule == "constant":
        return 1.0
    done = (step - warmup) / max(1, steps - warmup)
    if schedule == "linear":
        return max(0.0, 1.0 - done)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * done)))


def steps_of(samples: int, batch_size: int, epochs: float, max_steps: int | None) -> int:
    """Optimizer steps of a phase: the last batch of an epoch may be smaller."""
    if max_steps is not None:
        return max_steps
    return max(1, math.ceil(math.ceil(samples / batch_size) * epochs))
