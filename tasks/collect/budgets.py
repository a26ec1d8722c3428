"""What the services allow, and how much of it a run would use."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from schemas.settings.allowance import Allowance
from tasks.frame import Context
from tasks.services import Connection
from tasks.services.limit import DAY_S

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


def _of(connection: Connection, names: Mapping[str, str], kinds: Mapping[str, tuple[float, float]]) -> Iterator[Limit]:
    shared: dict[Allowance, list[str]] = {}
    for kind, name in names.items():
        allowance = connection.endpoint.allowance(name)
        if allowance is not None and not allowance.is_open and kind in kinds:
            shared.setdefault(allowance, []).append(kind)
    for allowance, counted in shared.items():
        requests = sum(kinds[kind][0] for kind in counted)
        used = _used_today(connection, allowance)
        yield Limit(connection.service, tuple(counted), requests, allowance.per_minute, allowance.per_day, used)


def _used_today(connection: Connection, allowance: Allowance) -> int:
    standing_of = getattr(connection.till, "standing", None)
    if standing_of is None or allowance.per_day is None:
        return 0
    standing = standing_of(f"{connection.endpoint.base_url} {allowance.name}")
    return int(standing.used) if standing.day == int(time.time() // DAY_S) else 0
