"""What a worker of a stage needs, and how many workers a stage can use."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from schemas.settings.spread import StageResources
from tasks.services import Connection

# How long a request is assumed to take at most, on average: that many seconds of a minute's budget can be under way.
REQUEST_S = 10.0


@dataclass(frozen=True)
class Resources:
    """What a stage needs of a worker; `spread.stages` in the settings overrides each field."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory_mb: int | None = None  # none: Ray does not count it
    workers: int | None = None  # none: as many as fit
    concurrency: int = 1  # items in flight in a worker, for async work
    chunk: int = 16  # items a call, to begin with
    may_grow: bool = True  # while calls are quick, if the work is not async


def chosen(declared: Resources, settings: StageResources | None) -> Resources:
    """What a stage declares, with what the settings say instead."""
    return replace(declared, **settings.model_dump(exclude_none=True)) if settings else declared


def most_workers(services: Sequence[Connection | None], concurrency: int) -> int | None:
    """How many workers can have a request under way at once within the budgets; None: no budget limits them.

    With R requests a minute that take REQUEST_S each, R / 60 * REQUEST_S are under way. Of several services the one
    that allows the most decides, since an item need not ask all of them.
    """
    limits = [one.endpoint.requests_per_minute for one in services if one is not None]
    if not limits or any(limit is None for limit in limits):
        return None
    under_way = max(limit for limit in limits if limit is not None) / 60 * REQUEST_S
    return max(1, math.ceil(under_way / max(1, concurrency)))
