"""The bench of the country lookup has a verdict."""

import importlib

import pytest

from bench import __main__ as bench
from bench.goals import judge
from bench.plan_country_lookup import goals


def test_slower_or_other_answers_fail() -> None:
    assert judge(goals(10.0, 0)) == 0
    assert judge(goals(9.9, 0)) == 1
    assert judge(goals(50.0, 1)) == 1


@pytest.mark.parametrize("name", [name for name in bench.BENCHMARKS if name.startswith("plan_")])
def test_every_benchmark_of_the_plan_gives_its_verdict(name: str) -> None:
    assert importlib.import_module(f"bench.{name}").main.__annotations__["return"] is int
