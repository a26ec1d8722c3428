"""What the services allow, and how much of it a run would use."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tasks.runtime.runner import Context
from tasks.services import Connection
from tasks.services.rate_budget import DAY_S

# Our words for kinds of requests -> those of the clients, by service.
_MAPILLARY = {"search": "search", "tiles": "tiles", "entity": ""}
_STAC = {"stac": "search", "signing": "token", "asset": "file"}


@dataclass(frozen=True)
class Limit:
    """One budget, and the requests that would be counted in it."""

    service: str
    kinds: tuple[str, ...]
    requests: float
    per_minute: float | None
    per_day: int | None
    used_today: int

    @property
    def minutes(self) -> float:
        """How long these requests take at the least."""
        return self.requests / self.per_minute if self.per_minute else 0.0

    @property
    def left_today(self) -> int | None:
        return None if self.per_day is None else max(0, self.per_day - self.used_today)

    @property
    def days(self) -> int:
        """How many days (UTC) they need: 1 if today is enough."""
        if self.per_day is None or self.left_today is None or self.requests <= self.left_today:
            return 1
        return 1 + -(-int(self.requests - self.left_today) // self.per_day)


def limits(kinds: Mapping[str, tuple[float, float]], context: Context) -> list[Limit]:
    """Every budget that these requests are counted in."""
    return [
        limit
        for connection, names in ((context.connections.mapillary, _MAPILLARY), (context.connections.stac, _STAC))
        for limit in _of(connection, names, kinds)
    ]


def left_today(connection: Connection) -> float:
    """Requests a day's budgets of the service still allow, by the tightest of them."""
    every = dict.fromkeys(_MAPILLARY, (0.0, 0.0))
    left = [limit.left_today for limit in _of(connection, _MAPILLARY, every) if limit.left_today is not None]
    return float(min(left, default=math.inf))


def _of(connection: Connection, names: Mapping[str, str], kinds: Mapping[str, tuple[float, float]]) -> Iterator[Limit]:
    # A budget's pace may be for some kinds and its day for more of them: then they are two limits.
    paces: dict[tuple[str, float], list[str]] = {}
    days: dict[tuple[str, int], list[str]] = {}
    for kind, name in names.items():
        for allowance in connection.endpoint.allowances(name) if kind in kinds else ():
            if allowance.per_minute is not None:
                paces.setdefault((allowance.name, allowance.per_minute), []).append(kind)
            if allowance.per_day is not None:
                days.setdefault((allowance.name, allowance.per_day), []).append(kind)
    for (bucket, per_minute), counted in paces.items():
        together = [per_day for (name, per_day), others in days.items() if name == bucket and others == counted]
        per_day = together[0] if together else None
        if per_day is not None:
            del days[bucket, per_day]
        yield _limit(connection, bucket, counted, kinds, per_minute, per_day)
    for (bucket, per_day), counted in days.items():
        yield _limit(connection, bucket, counted, kinds, None, per_day)


def _limit(
    connection: Connection, bucket: str, counted: list[str], kinds: Mapping[str, tuple[float, float]],
    per_minute: float | None, per_day: int | None,
) -> Limit:  # fmt: skip
    requests = sum(kinds[kind][0] for kind in counted)
    used = 0 if per_day is None else _used_today(connection, bucket)
    return Limit(connection.service, tuple(counted), requests, per_minute, per_day, used)


def _used_today(connection: Connection, bucket: str) -> int:
    standing_of = getattr(connection.rate_budget, "standing", None)
    if standing_of is None:
        return 0
    standing = standing_of(f"{connection.endpoint.base_url} {bucket}")
    return int(standing.used) if standing.day == int(time.time() // DAY_S) else 0
