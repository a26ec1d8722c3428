"""What a stage's calls to models would cost, from a few of its items that are done for real.

Their replies are written down as always, so the run that follows does not pay for them again, and a second estimate
costs nothing. No row of the stage is written.
"""

import asyncio
import inspect
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from schemas.messages import Usage
from schemas.settings.models import EstimateSettings
from schemas.tables import TABLES
from tasks.runtime.budget_actor import shared_rate_budget
from tasks.runtime.calls import StageCalls
from tasks.runtime.estimate import AT_ONCE, draw, margin
from tasks.runtime.identity import new_run_id
from tasks.runtime.outcome import Row
from tasks.runtime.resources import chosen
from tasks.runtime.runner import pending
from tasks.runtime.stage import Context, Stage, WorkerSetup, open_inputs
from tasks.services import ServiceError
from tasks.services.calls import Spending, spending_of
from tasks.services.errors import gather_all

Sampled = tuple[list[Spending], list[float], list[ServiceError]]  # of items: spent, seconds; and what failed


@dataclass
class CallEstimate:
    """Of one stage. The sums are of the items that are not sampled: what the run will still have to pay."""

    stage: str
    items: int
    sampled: int = 0
    calls: float = 0.0
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0
    cost_usd: float | None = 0.0  # None: a price is not known
    margin_usd: float = 0.0  # half of the 95 % interval
    seconds: float = 0.0
    by_role: dict[str, Usage] = field(default_factory=dict)  # of the sampled items
    paid: Usage = field(default_factory=Usage)  # to find out
    notes: list[str] = field(default_factory=list)


async def estimate_calls(stage: Stage, settings: Any, context: Context) -> CallEstimate:
    """What a run of the stage would pay for models now."""
    models = context.connections.chat.models
    assert models is not None
    wanted = models.settings.estimate
    todo, note = await asyncio.to_thread(_todo, stage, settings, context)
    found = CallEstimate(stage.name, todo.height, notes=[note] if note else [])
    if todo.is_empty() or not wanted.items:
        found.cost_usd = None if todo.height else 0.0
        return found
    await asyncio.to_thread(context.ready)
    calls = StageCalls(context.lake, models.settings, context.spread, stage.name, new_run_id(f"{stage.name}-estimate"))
    shared = context.connections.sharing(shared_rate_budget(context.lake, context.spread), calls.log)
    try:
        order = draw(todo.drop("made_from"), wanted.seed)
        opened = await asyncio.to_thread(stage.open, settings, WorkerSetup(context.lake, shared))
        samples, seconds, failed = await sample_until(order, lambda drawn: _sample(stage, drawn, opened), wanted)
    finally:
        await asyncio.to_thread(calls.commit)
    _scale(found, samples, seconds, stage, context)
    if failed:
        found.notes.append(f"{len(failed)} of {len(samples)} sampled failed: {failed[0]}")
    return found


async def sample_until(
    order: pl.DataFrame, sample: Callable[[pl.DataFrame], Awaitable[Sampled]], wanted: EstimateSettings
) -> Sampled:
    """The first items, and more of them while what they cost differs too much to tell what all cost.

    A fixed number is not enough: of synthesis, where an item may take one call or ten, 12 items of 60 leave an interval
    of 30 % to either side. The further ones cost nothing but time, since the run finds their replies.
    """
    samples, seconds, failed = list[Spending](), list[float](), list[ServiceError]()
    most = min(order.height, max(wanted.items, wanted.most))
    step = wanted.items
    while step > 0:
        spent, took, without = await sample(order.slice(len(samples), step))
        samples, seconds, failed = samples + spent, seconds + took, failed + without
        step = 0 if _is_known(samples, order.height, wanted.within) else min(AT_ONCE, most - len(samples))
    return samples, seconds, failed


def _is_known(samples: Sequence[Spending], items: int, within: float) -> bool:
    """Whether the total of all items is known within this share; of what has no price, the tokens."""
    whole = [sum(one.by_role.values(), start=Usage()) for one in samples]
    costs = [one.prompt_tokens + one.completion_tokens if one.cost_usd is None else one.cost_usd for one in whole]
    return margin(costs, items) <= within * statistics.fmean(costs) * items


async def _sample(stage: Stage, drawn: pl.DataFrame, opened: Any) -> Sampled:
    under_way = asyncio.Semaphore(AT_ONCE)
    samples, seconds, failed = list[Spending](), list[float](), list[ServiceError]()

    async def one(item: Row) -> None:
        async with under_way:
            began_s = time.monotonic()
            with spending_of(item["id"]) as spent:
                try:
                    done = stage.work(item, opened)
                    if inspect.isawaitable(done):
                        await done
                except ServiceError as error:
                    if error.kind == "auth":
                        raise
                    failed.append(error)
            samples.append(spent)
            seconds.append(time.monotonic() - began_s)

    await gather_all(one(item) for item in drawn.iter_rows(named=True))
    if failed and len(failed) == len(samples):
        raise failed[0]
    return samples, seconds, failed


def _scale(
    found: CallEstimate, samples: Sequence[Spending], seconds: Sequence[float], stage: Stage, context: Context
) -> None:
    found.sampled = len(samples)
    rest = found.items - found.sampled
    share = rest / found.sampled
    whole = [sum(one.by_role.values(), start=Usage()) for one in samples]
    total = sum(whole, start=Usage())
    found.calls = sum(one.calls for one in samples) * share
    found.prompt_tokens, found.completion_tokens = total.prompt_tokens * share, total.completion_tokens * share
    found.cost_usd = None if total.cost_usd is None else total.cost_usd * share
    if found.cost_usd is not None and rest:
        found.margin_usd = margin([one.cost_usd or 0.0 for one in whole], found.items)
    found.paid = sum((one.paid for one in samples), start=Usage())
    for one in samples:
        for role, usage in one.by_role.items():
            found.by_role[role] = found.by_role.get(role, Usage()) + usage
    # Items that were sampled before come without waiting: only those that asked tell how long it takes.
    asked = [took for took, one in zip(seconds, samples, strict=True) if one.paid.requests]
    resources = chosen(stage.resources, context.spread.stages.get(stage.name))
    workers = resources.workers or context.spread.workers or os.cpu_count() or 1
    each_s = statistics.fmean(asked or seconds)
    found.seconds = each_s * rest / max(1, min(workers * resources.concurrency, rest or 1))


def _todo(stage: Stage, settings: Any, context: Context) -> tuple[pl.DataFrame, str]:
    """The items a run would work on; where a step before it has not run yet, as if that let all pictures through."""
    inputs = open_inputs(stage, context.lake, context.snapshot)
    missing = [name for name, version in inputs.versions.items() if version < 0 and TABLES[name].key == ("image_id",)]
    if not missing or inputs.versions.get("images", -1) < 0:
        return pending(stage, settings, context), ""
    images = inputs.frame("images").select("image_id")
    made = {name: _as_if(name, images) for name in missing}
    items = stage.items(replace(inputs, _frames=dict(inputs._frames) | made), settings)
    note = f"{' and '.join(missing)} not made yet: all {images.height:,} pictures are counted"
    return items.with_columns(made_from=pl.lit("")), note


def _as_if(table: str, images: pl.DataFrame) -> pl.DataFrame:
    empty = pl.from_arrow(TABLES[table].schema.empty_table())
    assert isinstance(empty, pl.DataFrame)
    others = [pl.lit(None, dtype=kind).alias(name) for name, kind in empty.schema.items() if name != "image_id"]
    return images.with_columns(others)
