"""How many items an estimate of money does: until they tell what all of them cost."""

import asyncio
import random
from collections.abc import Sequence

import polars as pl
import pytest

from schemas.messages import Usage
from schemas.settings.models import EstimateSettings
from tasks.runtime.call_estimate import Sampled, sample_until
from tasks.services.calls import Spending


def done(costs: Sequence[float], **wanted: float) -> list[float]:
    """What the items cost that were done, in the order given."""
    items = pl.DataFrame({"cost": costs})

    async def sample(drawn: pl.DataFrame) -> Sampled:
        spent = [Spending(by_role={"m": Usage(0, 0, cost, 1)}) for cost in drawn["cost"]]
        return spent, [1.0] * len(spent), []

    found, seconds, _ = asyncio.run(sample_until(items, sample, EstimateSettings.model_validate(wanted)))
    assert len(seconds) == len(found)
    return [one.by_role["m"].cost_usd or 0.0 for one in found]


def test_equal_items_need_no_more_than_the_first() -> None:
    assert len(done([0.02] * 500)) == 16
    assert len(done([0.0] * 500)) == 16  # what is free is not worth the time
    assert len(done([0.02] * 5)) == 5


def test_differing_items_are_done_until_the_sum_is_known_or_there_are_enough() -> None:
    wild = [1.0, 9.0] * 250
    assert 16 < len(done(wild)) <= 64
    assert len(done(wild, within=0.01)) == 64 and len(done(wild, within=0.01, most=0)) == 16
    assert len(done(wild[:40], within=0.001)) == 40


def test_of_what_has_no_price_the_tokens_count() -> None:
    async def sample(drawn: pl.DataFrame) -> Sampled:
        return [Spending(by_role={"m": Usage(each, 1, None, 1)}) for each in drawn["n"]], [1.0] * drawn.height, []

    items = pl.DataFrame({"n": [100, 2000] * 200})
    found, _, _ = asyncio.run(sample_until(items, sample, EstimateSettings()))
    assert len(found) > 16


@pytest.mark.parametrize("spread", [0.25, 0.55])
def test_nineteen_of_twenty_estimates_are_within_a_fifth(spread: float) -> None:
    chance, off = random.Random(3), 0
    for _ in range(200):
        costs = [max(0.1, chance.gauss(1, spread)) for _ in range(600)]
        spent = done(costs)
        rest = sum(costs) - sum(spent)
        off += abs(sum(spent) / len(spent) * (len(costs) - len(spent)) / rest - 1) > 0.2
    assert off <= 16  # 10 expected at most
