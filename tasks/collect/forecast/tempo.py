"""How fast items go, from a few stretches of them done side by side.

In a stretch of n items that took `wall_s` by the clock and `busy_s` together, c = busy_s / wall_s were under way on the
average. Where everybody waits for an answer, more at once go faster; where something is full (a core, a line, a
service), they do not. Both at once is a line:

    seconds an item = waiting / c + full

Two stretches with different c give its two numbers, and with them the time at any other c. (Little's law; the bounds of
a closed queue.)
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

FEW = 4  # items side by side in one stretch: against the many of another it shows what is waiting

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Stretch:
    """Items done side by side."""

    items: int
    wall_s: float
    busy_s: float  # of all items, each by itself

    @property
    def at_once(self) -> float:
        """Items under way, on the average."""
        return self.busy_s / self.wall_s if self.wall_s > 0 else 1.0

    @property
    def seconds_each(self) -> float:
        return self.wall_s / self.items


@dataclass(frozen=True)
class Tempo:
    """What an item costs: seconds of waiting, which many can do at once, and seconds of what is full."""

    waiting_s: float = 0.0
    full_s: float = 0.0

    def seconds(self, items: float, at_once: int) -> float:
        """How long so many items take."""
        if items <= 0:
            return 0.0
        return items * self.full_s + items * self.waiting_s / max(1.0, min(at_once, items))


def tempo_of(stretches: Sequence[Stretch]) -> Tempo:
    """The line through the stretches, neither number below 0. One stretch, or all alike: what was, would be."""
    known = [one for one in stretches if one.items and one.wall_s > 0 and one.busy_s > 0]
    if not known:
        return Tempo()
    weight = sum(one.items for one in known)
    x = sum(one.items / one.at_once for one in known) / weight
    y = sum(one.wall_s for one in known) / weight
    spread = sum(one.items * (1 / one.at_once - x) ** 2 for one in known)
    if len(known) < 2 or spread < 1e-9 * weight:
        return Tempo(full_s=y)
    slope = sum(one.items * (1 / one.at_once - x) * (one.seconds_each - y) for one in known) / spread
    busiest = max(known, key=lambda one: one.at_once)
    if slope <= 0:
        return Tempo(full_s=busiest.seconds_each)  # the more at once, the better it tells how full things are
    if y - slope * x <= 0:
        return Tempo(waiting_s=busiest.busy_s / busiest.items)
    return Tempo(slope, y - slope * x)


async def side_by_side(
    items: Iterable[Item], work: Callable[[Item], Awaitable[Result]], at_once: int
) -> tuple[list[Result], Stretch]:
    """The results in order, never more than `at_once` under way, and how long it took."""
    gate = asyncio.Semaphore(at_once)

    async def one(item: Item) -> tuple[Result, float]:
        async with gate:
            start_s = time.monotonic()
            return await work(item), time.monotonic() - start_s

    start_s = time.monotonic()
    done = await asyncio.gather(*(asyncio.create_task(one(item)) for item in items))
    wall_s = time.monotonic() - start_s
    return [result for result, _ in done], Stretch(len(done), wall_s, sum(seconds for _, seconds in done))


def in_stretches(count: int, at_once: int) -> list[tuple[int, int]]:
    """How to go through so many items: (items, side by side); one alone to warm up, some with few others, the rest."""
    some = (count - 1) // 3 if at_once > FEW else 0
    parts = [(min(1, count), 1), (some, FEW), (count - 1 - some, at_once)]
    return [(items, beside) for items, beside in parts if items > 0]
