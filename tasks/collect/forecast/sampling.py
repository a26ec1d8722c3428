"""From a few items to all of them: a seeded draw, totals with intervals, more of the draw while they are loose."""

import hashlib
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from scipy.stats import t as student

from tasks.collect.forecast.meter import Tally, tally
from tasks.collect.forecast.tempo import Stretch, in_stretches, side_by_side
from tasks.services import ServiceError

FEWEST = 4  # items sampled, whatever they cost
REQUESTS_EACH = 5.0  # of an item, before it is known: with it the first draw is bounded


@dataclass(frozen=True)
class Figure:
    """A total, and the interval that holds it 19 times of 20."""

    value: float = 0.0
    low: float = 0.0
    high: float = 0.0

    def __add__(self, other: "Figure") -> "Figure":
        # Independent errors: their squares add up.
        value = self.value + other.value
        below = math.hypot(self.value - self.low, other.value - other.low)
        above = math.hypot(self.high - self.value, other.high - other.value)
        return Figure(value, value - below, value + above)

    def is_tight(self, precision: float) -> bool:
        return self.high - self.value <= precision * self.value


@dataclass
class Sample:
    """What drawn items of a population cost."""

    population: float  # items there are; a share of another sample need not be whole
    tallies: list[Tally] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)  # how long they took, but for the first, which warms up
    failed: list[ServiceError] = field(default_factory=list)  # what they cost counts all the same
    cut_short: bool = False  # it would have been larger, but for what could be afforded

    def requests(self) -> Figure:
        return total([cost.total_requests for cost in self.tallies], self.population)

    def bytes(self) -> Figure:
        return total([cost.total_bytes for cost in self.tallies], self.population)

    def by_kind(self) -> dict[str, tuple[float, float]]:
        """(requests, bytes) of the whole population."""
        kinds = sorted({kind for cost in self.tallies for kind in cost.requests})
        scale = self.population / max(1, len(self.tallies))
        return {
            kind: (
                scale * sum(cost.requests[kind] for cost in self.tallies),
                scale * sum(cost.bytes[kind] for cost in self.tallies),
            )
            for kind in kinds
        }


def draw(items: pl.DataFrame, seed: int, by: str = "id") -> pl.DataFrame:
    """The items in an order that follows from the seed and their ids: its first n are a random sample of n.

    Ids of pictures differ from lake to lake: where two lakes are to draw alike, `by` names another column.
    """

    def rank(name: str) -> str:
        return hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).hexdigest()

    order = pl.Series("rank", [rank(name) for name in items[by]], dtype=pl.String)
    return items.with_columns(order).sort("rank", "id").drop("rank")


def total(values: Sequence[float], population: float) -> Figure:
    """The total of a population from a sample drawn without putting back, by Student's t."""
    n = len(values)
    if n == 0:
        return Figure()
    mean = sum(values) / n
    value = mean * population
    if n >= population:
        return Figure(value, value, value)
    if n == 1:
        return Figure(value, 0.0, math.inf)
    variance = sum((one - mean) ** 2 for one in values) / (n - 1)
    half = float(student.ppf(0.975, n - 1)) * math.sqrt(variance / n * (1 - n / population)) * population
    return Figure(value, max(value - half, sum(values)), value + half)


async def sample(
    items: pl.DataFrame,
    work: Callable[[dict[str, Any]], Awaitable[Any]],
    *,
    first: int,
    most: int,
    precision: float,
    seed: int,
    at_once: int,
    population: float | None = None,
    afford: float = math.inf,
    later: int = 0,
) -> Sample:
    """The cost of items, of `first` of them and then of twice as many, until the totals are tight or `most` are done.

    What `work` sends is counted for its item by whatever meters the services. `population` counts what the items
    stand for, where they are themselves only a part of it. A failed item is sampled as one: a run would go on. No more
    requests than `afford` are meant to be made, but for the fewest that say anything. What is sampled beyond the first
    may have more under way (`later`): only then it shows where a service or a core is full.
    """
    found = Sample(float(items.height) if population is None else population)
    drawn = draw(items, seed)

    async def one(item: dict[str, Any]) -> Tally:
        cost = Tally()
        token = tally.set(cost)
        try:
            await work(item)
        except ServiceError as error:
            if error.kind == "auth":
                raise
            found.failed.append(error)
        finally:
            tally.reset(token)
        return cost

    few = int(min(max(FEWEST, afford / REQUESTS_EACH), first))
    done, wanted = 0, min(few, most, items.height)
    while done < wanted:
        for count, beside in [(wanted - done, max(at_once, later))] if done else in_stretches(wanted, at_once):
            part = drawn.slice(done, count).iter_rows(named=True)
            costs, stretch = await side_by_side(part, one, beside)
            found.tallies += costs
            if done or wanted == 1:  # what is first waits for what is only made ready
                found.stretches.append(stretch)
            done += count
        if len(found.failed) == done:
            raise found.failed[0]  # nothing can be said about a service that answers nobody
        if not (found.requests().is_tight(precision) and found.bytes().is_tight(precision)):
            each = max(sum(cost.total_requests for cost in found.tallies) / done, 1e-9)
            affordable = done if done * each >= afford else int(min(afford / each, items.height))
            found.cut_short = affordable < min(2 * wanted, most, items.height)
            wanted = min(2 * wanted, most, items.height, max(done, affordable))
    return found
