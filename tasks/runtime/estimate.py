"""What a stage would send, receive and take, scaled up from a seeded sample of its items.

The sampled items are worked on by a function of the stage's own that stops before anything is paid for or written;
`tasks.services.meter` counts what it sends. Nothing here is specific to a stage.
"""

import asyncio
import hashlib
import math
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from schemas.settings.services import is_loopback
from tasks.runtime.outcome import Row
from tasks.runtime.stage import Context, Stage
from tasks.services import Connection, Connections, ServiceError
from tasks.services.errors import gather_all
from tasks.services.meter import Tally, counted_in, tally
from tasks.services.rate_budget import DAY_S

FEWEST = 4  # items sampled before it is known what one costs
AT_ONCE = 8
SHARE_OF_DAY = 0.1  # of the requests left of a day's budget, spent on an estimate at most


@dataclass
class Sample:
    """What some items cost."""

    costs: list[Tally] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    failed: list[ServiceError] = field(default_factory=list)  # what they sent counts all the same
    cut_short: bool = False  # by the day's budget


@dataclass
class StageEstimate:
    """What one stage would cost."""

    stage: str
    items: int
    sampled: int = 0
    requests: dict[str, float] = field(default_factory=dict)  # by "service kind"
    bytes: dict[str, float] = field(default_factory=dict)
    requests_margin: float = 0.0  # half of the 95 % interval of all requests
    bytes_margin: float = 0.0
    each_s: float = 0.0  # seconds for one item
    seconds: float = 0.0
    bound_by: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def all_requests(self) -> float:
        return sum(self.requests.values())

    @property
    def all_bytes(self) -> float:
        return sum(self.bytes.values())

    def add(self, kind: str, requests: float, size: float = 0.0) -> None:
        self.requests[kind] = self.requests.get(kind, 0.0) + requests
        self.bytes[kind] = self.bytes.get(kind, 0.0) + size

    def add_sample(self, found: Sample, population: float) -> None:
        """Add what a population costs of which these items are a sample."""
        count = len(found.costs)
        if not count:
            return
        for cost in found.costs:
            for kind in cost.requests:
                self.add(kind, cost.requests[kind] * population / count, cost.bytes[kind] * population / count)
        requests, sizes = zip(*((cost.requests.total(), cost.bytes.total()) for cost in found.costs), strict=True)
        self.requests_margin = math.hypot(self.requests_margin, margin(requests, population))
        self.bytes_margin = math.hypot(self.bytes_margin, margin(sizes, population))
        self.each_s = (self.each_s * self.sampled + sum(found.seconds)) / (self.sampled + count)
        self.sampled += count
        if found.failed:
            self.notes.append(f"{len(found.failed)} of {count} sampled failed: {found.failed[0]}")
        if found.cut_short:
            self.notes.append(f"{count} sampled, not more: that would take over a tenth of what is left of today")


def margin(values: Sequence[float], population: float) -> float:
    """Half the 95 % interval of a population's total, from values sampled without replacement."""
    n = len(values)
    if n < 2 or n >= population:
        return 0.0
    return 1.96 * population * statistics.stdev(values) * math.sqrt((1 - n / population) / n)


def draw(items: pl.DataFrame, seed: int, by: str = "id") -> pl.DataFrame:
    """The items in an order that follows from the seed and a column: the first n are a random sample of n."""

    def rank(name: str) -> str:
        return hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).hexdigest()

    order = pl.Series("rank", [rank(name) for name in items[by]], dtype=pl.String)
    return items.with_columns(order).sort("rank", by).drop("rank")


async def sample(
    items: pl.DataFrame, work: Callable[[Row], Awaitable[object]], count: int, seed: int, afford: float = math.inf
) -> Sample:
    """The cost of `count` of the items, or of as many as need no more than `afford` requests."""
    found, drawn = Sample(), draw(items, seed).head(count)
    under_way = asyncio.Semaphore(AT_ONCE)

    async def one(item: Row) -> None:
        async with under_way:
            began_s = time.monotonic()
            with counted_in(Tally(parent=tally.get())) as cost:
                try:
                    await work(item)
                except ServiceError as error:
                    if error.kind == "auth":
                        raise
                    found.failed.append(error)
            found.costs.append(cost)
            found.seconds.append(time.monotonic() - began_s)

    async def some(part: pl.DataFrame) -> None:
        await gather_all(one(item) for item in part.iter_rows(named=True))

    await some(drawn.head(FEWEST))
    if found.costs and drawn.height > FEWEST:
        each = max(statistics.fmean(sum(cost.requests.values()) for cost in found.costs), 1e-9)
        affordable = max(FEWEST, int(min(afford / each, drawn.height)))
        found.cut_short = affordable < drawn.height
        await some(drawn.slice(FEWEST, affordable - FEWEST))
    if found.costs and len(found.failed) == len(found.costs):
        raise found.failed[0]
    return found


@dataclass(frozen=True)
class Limit:
    """One budget, a minute's or a day's, and the requests that would be counted in it."""

    service: str
    kinds: tuple[str, ...]
    requests: float
    per_minute: float | None = None
    per_day: int | None = None
    used_today: int = 0

    @property
    def minutes(self) -> float:
        """How long these requests take at least."""
        return self.requests / self.per_minute if self.per_minute else 0.0

    @property
    def left_today(self) -> int | None:
        return None if self.per_day is None else max(0, self.per_day - self.used_today)

    @property
    def days(self) -> int:
        """How many days (UTC) they need: 1 if today is enough."""
        if self.per_day is None or self.left_today is None or self.requests <= self.left_today:
            return 1
        return 1 + math.ceil((self.requests - self.left_today) / self.per_day)


def limits(requests: Mapping[str, float], connections: Connections) -> list[Limit]:
    """Every budget that these requests, by "service kind", are counted in."""
    minutes: dict[tuple[str, str, float], list[str]] = {}
    days: dict[tuple[str, str, int], list[str]] = {}
    for name in requests:
        service, _, kind = name.partition(" ")
        for allowance in getattr(connections, service).endpoint.allowances(kind):
            if allowance.per_minute is not None:
                minutes.setdefault((service, allowance.name, allowance.per_minute), []).append(name)
            if allowance.per_day is not None:
                days.setdefault((service, allowance.name, allowance.per_day), []).append(name)

    def every() -> Iterator[Limit]:
        for (service, _, per_minute), names in minutes.items():
            yield Limit(service, tuple(names), sum(requests[name] for name in names), per_minute=per_minute)
        for (service, bucket, per_day), names in days.items():
            used = used_today(getattr(connections, service), bucket)
            total = sum(requests[name] for name in names)
            yield Limit(service, tuple(names), total, per_day=per_day, used_today=used)

    return list(every())


def affordable(connection: Connection, kinds: Sequence[str]) -> float:
    """Requests that an estimate may send: a tenth of what the tightest of the day's budgets still allows."""
    left = [
        max(0, allowance.per_day - used_today(connection, allowance.name))
        for kind in kinds
        for allowance in connection.endpoint.allowances(kind)
        if allowance.per_day is not None
    ]
    return SHARE_OF_DAY * min(left, default=math.inf)


def used_today(connection: Connection, bucket: str) -> int:
    """Requests of a day's budget that are spent."""
    if connection.rate_budget is None:
        return 0
    standing = connection.rate_budget.standing(f"{connection.endpoint.base_url} {bucket}")
    return int(standing.used) if standing.day == int(time.time() // DAY_S) else 0


def set_time(found: StageEstimate, stage: Stage, context: Context, megabytes_per_second: float) -> None:
    """The longest of three: the limits a minute, the line, and the sampled seconds an item at the run's concurrency."""
    workers = stage.resources.workers or context.spread.workers or os.cpu_count() or 1
    under_way = max(1, min(workers * stage.resources.concurrency, found.items))
    remote = (kind for kind in found.bytes if not is_loopback(_base_url(context.connections, kind)))
    bounds = {
        "requests a minute": max((limit.minutes for limit in limits(found.requests, context.connections)), default=0.0)
        * 60,
        "the line": sum(found.bytes[kind] for kind in remote) / (megabytes_per_second * 1e6),
        "the work on each item": found.each_s * found.items / under_way,
    }
    found.bound_by = max(bounds, key=lambda name: bounds[name])
    found.seconds = bounds[found.bound_by]


def _base_url(connections: Connections, kind: str) -> str:
    connection: Connection = getattr(connections, kind.partition(" ")[0])
    return connection.endpoint.base_url
