"""Estimates scaled up from samples: by hand, by coverage over many draws, and within a day's budget."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.settings.services import MapillaryEndpoint, ServicesSettings
from tasks.runtime.estimate import FEWEST, Sample, StageEstimate, draw, limits, margin, sample
from tasks.services import Connection, ServiceError, connect
from tasks.services.meter import Tally, count, counted_in


def test_a_margin_by_hand_and_at_the_edges() -> None:
    # s = sqrt(10), n = 5 of N = 100: 1.96 * 100 * sqrt(10 / 5 * 0.95)
    assert margin([2, 4, 6, 8, 10], 100) == pytest.approx(1.96 * 100 * (10 / 5 * 0.95) ** 0.5)
    assert margin([], 10) == margin([4], 10) == margin([3, 5], 2) == 0.0


def test_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    chance = random.Random(5)
    values = [chance.choice([1.0, 1.0, 2.0, 3.0, 8.0]) for _ in range(400)]
    held = 0
    for _ in range(1000):
        drawn = chance.sample(values, 60)
        held += abs(sum(drawn) / 60 * 400 - sum(values)) <= margin(drawn, 400)
    assert 920 <= held <= 980


@settings(max_examples=50, deadline=None)
@given(st.sets(st.text(min_size=1, max_size=6), min_size=1, max_size=40), st.integers(0, 99))
def test_a_draw_is_the_same_whatever_the_order_of_the_items(names: set[str], seed: int) -> None:
    items = [pl.DataFrame({"id": sorted(names, reverse=backwards)}) for backwards in (False, True)]
    first, second = (draw(frame, seed)["id"].to_list() for frame in items)
    assert first == second and set(first) == names


def test_draws_are_fair() -> None:
    items = pl.DataFrame({"id": [f"p{k}" for k in range(10)]})
    seen = Counter(name for seed in range(600) for name in draw(items, seed)["id"][:3])
    assert all(130 <= number <= 230 for number in seen.values())  # 180 expected, s = 11


def sampled(
    costs: list[int], failing: Mapping[int, ServiceError] = MappingProxyType({}), **options: Any
) -> tuple[Sample, Tally]:
    items = pl.DataFrame({"id": [f"i{k:04d}" for k in range(len(costs))], "cost": costs})

    async def work(item: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        count("web", "search", item["cost"], 10 * item["cost"])
        if item["cost"] in failing:
            raise failing[item["cost"]]

    with counted_in(Tally()) as asked:
        found = asyncio.run(sample(items, work, **{"count": 20, "seed": 1, **options}))
    return found, asked


def test_each_item_is_counted_by_itself_and_all_of_them_together() -> None:
    found, asked = sampled(list(range(20)))
    assert sorted(cost.requests["web search"] for cost in found.costs) == list(range(20))
    assert (asked.requests["web search"], asked.bytes["web search"]) == (190, 1900)


def test_a_sample_is_scaled_up() -> None:
    found, _ = sampled([3] * 500)
    stage = StageEstimate("s", 500)
    stage.add("web", 2, 5)
    stage.add_sample(found, 500)
    assert stage.requests == {"web": 2, "web search": pytest.approx(1500)}
    assert (stage.sampled, stage.all_bytes, stage.requests_margin) == (20, pytest.approx(15_005), 0)


@given(st.integers(1, 12), st.integers(0, 600), st.integers(3, 60))
def test_no_more_is_asked_than_can_be_afforded(each: int, afford: int, number: int) -> None:
    found, asked = sampled([each] * number, count=40, afford=float(afford))
    assert len(found.costs) >= min(FEWEST, number)
    assert len(found.costs) == min(FEWEST, number) or asked.requests["web search"] <= afford
    assert found.cut_short == (len(found.costs) < min(40, number))


def test_a_failed_item_counts_and_only_a_service_that_is_out_or_refuses_the_key_ends_it() -> None:
    outage = ServiceError("s", "outage", "not today", retryable=True)
    found, asked = sampled([3] * 6 + [5] * 2, {5: outage})
    assert asked.requests["web search"] == 28 and found.failed == [outage] * 2
    with pytest.raises(ServiceError, match="not today"):
        sampled([5] * 8, {5: outage})
    with pytest.raises(ServiceError, match="who are you"):
        sampled([3] * 7 + [5], {5: ServiceError("s", "auth", "who are you")})


def test_budgets_say_how_long_and_how_many_days() -> None:
    requests = {"mapillary search": 250.0, "mapillary": 60.0, "mapillary tiles": 2500.0, "mapillary picture": 9e9}

    def found(**settings: Any) -> list[tuple[Any, ...]]:
        endpoint = MapillaryEndpoint(**settings)
        connections = replace(connect(ServicesSettings(), {}), mapillary=Connection("mapillary", endpoint))
        return [(one.kinds, one.minutes, one.left_today, one.days) for one in limits(requests, connections)]

    search, entity, tiles = "mapillary search", "mapillary", "mapillary tiles"
    assert found(requests_per_minute=600, search_per_minute=100, tiles_per_day=1000) == [
        ((search,), pytest.approx(2.5), None, 1),
        ((entity, tiles), pytest.approx(2560 / 600), None, 1),  # one rate for both
        ((tiles,), 0.0, 1000, 3),
    ]
    # The day's requests are of every kind, whatever has a rate of its own.
    assert found(search_per_minute=100, requests_per_day=1000)[1] == ((search, entity, tiles), 0.0, 1000, 3)
