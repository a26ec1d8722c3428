"""A benchmark that misses its goal says so and returns 1; figures here are made up."""

import importlib

import pytest

from bench import __main__ as bench
from bench import collect_latency, labels_million, mosaic, panorama
from bench.goals import Goal, judge

TIMES = {"geofix": 1.0, "bare, INTER_AREA": 0.8, "Pillow, LANCZOS": 2.1}


@pytest.mark.parametrize(
    ("held", "missed"),
    [
        (panorama.goals(TIMES), panorama.goals({**TIMES, "bare, INTER_AREA": 0.7})),
        (panorama.goals(TIMES), panorama.goals({**TIMES, "Pillow, LANCZOS": 1.9})),
        (panorama.view_goals(1, [(0.96, 5.1)]), panorama.view_goals(1, [(0.94, 5.1)])),
        (panorama.view_goals(1, [(1.0, 5.1), (1.0, 5.2), (0.2, 1.0)]), panorama.view_goals(1, [(1.0, 4.9)])),
        (mosaic.goals(1.2, 1.0), mosaic.goals(1.21, 1.0)),
        (mosaic.goals(1.0, 1.5), mosaic.goals(1.0, 0.99)),
        ([collect_latency.speed_goal(2.5, 0.1)], [collect_latency.speed_goal(2.4, 0.1)]),
        ([collect_latency.rate_goal(600.0)], [collect_latency.rate_goal(569.0)]),
        ([collect_latency.rate_goal(571.0)], [collect_latency.rate_goal(607.0)]),
        (labels_million.country_goals(11, 0), labels_million.country_goals(9, 0)),
        (labels_million.country_goals(11, 0), labels_million.country_goals(11, 1)),
    ],
)
def test_one_figure_that_does_not_hold_is_enough(held: list[Goal], missed: list[Goal]) -> None:
    assert judge(held) == 0
    assert judge(missed) == 1


def test_the_missed_one_is_named_with_what_was_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        judge([Goal("speed", 3.0, at_least=2), Goal("bytes", 1.5, at_most=1.2), Goal("lost", float("nan"), 0, 1)]) == 1
    )
    assert capsys.readouterr().out.splitlines() == [
        "   MISSED bytes: 1.5, wanted at most 1.2",
        "   MISSED lost: nan, wanted at least 0 and at most 1",
    ]


@pytest.mark.parametrize("name", bench.BENCHMARKS)
def test_every_benchmark_gives_its_verdict(name: str) -> None:
    assert importlib.import_module(f"bench.{name}").main.__annotations__["return"] is int


def test_one_missed_goal_fails_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.overhead.main", lambda: 0)
    monkeypatch.setattr("bench.mosaic.main", lambda: judge(mosaic.goals(2.0, 1.0)))
    assert bench.run(["overhead"]) == 0
    assert bench.run(["mosaic", "overhead"]) == 1
