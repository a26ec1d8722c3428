"""How fast items go, from a few stretches of them done side by side.

In a stretch of n items that took `wall_s` by the clock and `busy_s` together, c = busy_s / wall_s were under way on the
average. Where everybody waits for an answer, more at once go faster; where something is full (a core, a line, a
service), they do not. Both at once is a line:

    seconds an item = waiting / c + full

Stretches with different c give its two numbers, and with them the time at any other c. (Little's law; the bounds of
a closed queue.)
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

ALIKE = 0.6  # of the most at once: stretches with so many tell the same
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
    """The line through the two busiest kinds of stretches, neither number below 0.

    With few at once nothing is full yet: such stretches tell less the more others there are. One kind only: what was,
    would be.
    """
    known = [one for one in stretches if one.items and one.wall_s > 0 and one.busy_s > 0]
    if not known:
        return Tempo()
    many, rest = _busiest(known)
    few, _ = _busiest(rest) if rest else (many, rest)
    across = 1 / few.at_once - 1 / many.at_once
    if across < 1e-9:
        return Tempo(full_s=many.seconds_each)
    slope = (few.seconds_each - many.seconds_each) / across
    if slope <= 0:
        return Tempo(full_s=many.seconds_each)  # the more at once, the better it tells how full things are
    full_s = many.seconds_each - slope / many.at_once
    return Tempo(slope, full_s) if full_s > 0 else Tempo(waiting_s=many.busy_s / many.items)


def _busiest(stretches: Sequence[Stretch]) -> tuple[Stretch, list[Stretch]]:
    """The stretches with the most at once, and those with not much less, as one; and the others."""
    most = max(one.at_once for one in stretches)
    alike = [one for one in stretches if one.at_once > ALIKE * most]
    return (
        Stretch(sum(s.items for s in alike), sum(s.wall_s for s in alike), sum(s.busy_s for s in alike)),
        [one for one in stretches if one.at_once <= ALIKE * most],
    )


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
