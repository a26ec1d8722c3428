"""Totals from samples: against textbook numbers, by coverage over many draws, and at the edges."""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.settings.services import MapillaryEndpoint, StacEndpoint
from tasks.collect.forecast.meter import Tally, mapillary_meter, stac_meter, tally
from tasks.collect.forecast.sampling import Figure, draw, sample, total
from tasks.services import ServiceError


def test_a_total_by_hand() -> None:
    # mean 6, s^2 = 10, n = 5 of N = 100, t(0.975, 4) = 2.7764: 100 * 2.7764 * sqrt(10 / 5 * 0.95)
    found = total([2, 4, 6, 8, 10], 100)
    assert found.value == 600
    assert found.high - 600 == pytest.approx(277.64 * math.sqrt(1.9), rel=1e-4)
    assert 600 - found.low == pytest.approx(found.high - 600)


def test_the_edges_of_a_total() -> None:
    assert total([], 10) == Figure(0, 0, 0)
    assert total([3, 5], 2) == Figure(8, 8, 8)  # all of them: nothing is left to guess
    assert total([4], 10).high == math.inf
    assert total([0, 0, 30], 30).low == 30  # at least what was seen


def test_figures_of_independent_parts_add_up() -> None:
    assert Figure(10, 7, 13) + Figure(20, 16, 24) == Figure(30, 25, 35)
    assert sum([Figure(1, 1, 1)] * 3, Figure()) == Figure(3, 3, 3)


def test_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    chance = random.Random(5)
    values = [chance.choice([1, 1, 2, 3, 8]) for _ in range(400)]
    held = 0
    for _ in range(1000):
        found = total(chance.sample(values, 60), len(values))
        held += found.low <= sum(values) <= found.high
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
    assert all(130 <= count <= 230 for count in seen.values())  # 180 expected, s = 11


def sampled(
    costs: list[int], failing: Mapping[int, ServiceError] = MappingProxyType({}), **options: Any
) -> tuple[Any, list[int]]:
    done: list[int] = []
    items = pl.DataFrame({"id": [f"i{k:04d}" for k in range(len(costs))], "cost": costs})

    async def work(item: dict[str, Any]) -> None:
        running = tally.get()
        assert running is not None
        await asyncio.sleep(0)
        running.add("search", item["cost"], 10 * item["cost"])
        if item["cost"] in failing:
            raise failing[item["cost"]]
        done.append(item["cost"])

    wanted = {"first": 8, "most": 64, "precision": 0.1, "seed": 1, "at_once": 4, **options}
    return asyncio.run(sample(items, work, **wanted)), done


def test_more_is_sampled_only_while_the_total_is_loose() -> None:
    even, done = sampled([3] * 500)
    assert len(done) == 8 and even.requests() == Figure(1500, 1500, 1500)
    assert even.by_kind() == {"search": (1500.0, 15000.0)}
    uneven, done = sampled([1, 40] * 250)
    assert len(done) == 64
    assert uneven.requests().low <= 250 * 41 <= uneven.requests().high
    every, done = sampled([1, 40] * 10)
    assert len(done) == 20 and every.requests() == Figure(410, 410, 410)
    nothing, done = sampled([])
    assert done == [] and nothing.requests() == Figure() and nothing.by_kind() == {}


@given(st.integers(1, 12), st.integers(0, 600), st.integers(2, 300))
def test_no_more_is_asked_than_can_be_afforded(each: int, afford: int, count: int) -> None:
    found, done = sampled([each, 2 * each] * count, precision=0.0001, afford=float(afford))
    fewest = min(4, 2 * count)
    assert len(done) >= fewest
    assert len(done) == fewest or sum(done) <= max(2 * afford, 2 * each * afford / 5)
    whole, every = sampled([each, 2 * each] * count, precision=0.0001)
    assert not found.cut_short or len(done) < len(every)
    assert not whole.cut_short


def test_each_item_is_billed_for_its_own() -> None:
    found, _ = sampled(list(range(20)), at_once=20)
    assert sorted(cost.total_requests for cost in found.tallies) == list(range(20))


def test_a_failed_item_costs_what_it_cost_and_only_a_service_that_is_out_ends_it() -> None:
    outage = ServiceError("s", "outage", "not today", retryable=True)
    found, done = sampled([3] * 6 + [5] * 2, {5: outage})
    assert found.requests().value == 28 and found.failed == [outage] * 2 and len(done) == 6
    with pytest.raises(ServiceError, match="not today"):
        sampled([5] * 8, {5: outage})
    with pytest.raises(ServiceError, match="who are you"):
        sampled([3] * 7 + [5], {5: ServiceError("s", "auth", "who are you")})


def test_a_part_of_a_population_stands_for_all_of_it() -> None:
    found, _ = sampled([2, 2, 2], population=30.0)
    assert found.requests().value == 60


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("http://127.0.0.1:8760/mapillary/images?bbox=1", "search"),
        ("http://127.0.0.1:8760/mapillary/images", "search"),
        ("http://127.0.0.1:8760/mapillary/123?fields=id", "entity"),
        ("http://127.0.0.1:8760/mapillary/?ids=1,2", "entity"),
        ("http://127.0.0.1:8760/mapillary-cdn/m/1/original.jpg?oe=1", "picture"),
        ("http://127.0.0.1:8760/mapillary-tiles/maps/vtp/mly1_public/2/14/1/2?access_token=x", "tiles"),
        ("https://elsewhere.example/p.jpg", "picture"),
    ],
)
def test_requests_are_told_apart_by_address(url: str, kind: str) -> None:
    assert mapillary_meter(MapillaryEndpoint()).kind_of(url) == kind


def test_requests_for_scenes_are_told_apart_too() -> None:
    endpoint = StacEndpoint()
    meter = stac_meter(endpoint)
    assert meter.kind_of(f"{endpoint.base_url}/search") == "stac"
    assert meter.kind_of(f"{endpoint.sas_url}/token/a/b") == "signing"
    assert meter.kind_of("http://127.0.0.1:8760/blob/a/b/c.tif?sig=1") == "asset"


def test_tallies_add_up() -> None:
    one, two = Tally(), Tally()
    one.add("search", 2, 10)
    two.add("search", 1, 5)
    two.add("tiles", 4)
    one += two
    assert (one.total_requests, one.total_bytes, one.requests["search"]) == (7, 15, 3)
