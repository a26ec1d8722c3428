"""Estimates: what is pending times what the last runs took for an item, or a default that says so."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from schemas.settings.base import Settings
from schemas.settings.models import ModelsSettings, Role
from schemas.settings.services import MapillaryEndpoint, ServicesSettings
from tasks.lake import Commit, Lake
from tasks.runtime.estimate import DEFAULT_REQUESTS, DEFAULT_SECONDS, LAST_RUNS, estimate, limits
from tasks.runtime.runner import ColumnStage, Context, Stage
from tasks.services import Connection, connect

PRICE = {"prompt": 100.0, "completion": 1_000.0}
BEGAN = datetime(2027, 1, 1, tzinfo=UTC)


def stage(**given: Any) -> Stage:
    fields: dict[str, Any] = {
        "name": "s",
        "reads": ("places",),
        "writes": ("gaps",),
        "items": lambda inputs, settings: inputs.frame("places").select(id="place_id"),
        "work": lambda item, context: None,
        "open": lambda settings, setup: None,
        "services": ("mapillary", "chat"),
        "roles": lambda settings: ("judge",),
    }
    return Stage(**{**fields, **given})


@pytest.fixture
def context(tmp_path: Path) -> Context:
    lake = Lake(tmp_path / "lake")
    row = {"country": "FR", "lat": 1.0, "lon": 2.0, "split": "train"}
    lake.upsert("places", [{**row, "place_id": f"p{k}"} for k in range(8)], Commit("plan", 1))
    models = ModelsSettings.model_validate({"roles": {"judge": {"price": PRICE}}})
    return Context(lake, connect(ServicesSettings(), {}, models=models))


def ran(lake: Lake, number: int, items: int, seconds: float, sent: dict[str, Any], name: str = "s") -> None:
    began = BEGAN + timedelta(days=number)
    row = {"run_id": f"r{number}", "stage": name, "status": "done", "kept": items, "rejected": 0, "failed": 0}
    times = {"started_at": began, "finished_at": began + timedelta(seconds=seconds)}
    lake.append("runs", [{**row, **times, "sent_json": json.dumps(sent)}], Commit(f"run{number}", 1))


def asked(lake: Lake, number: int, item: str, cost: float | None, name: str = "s", model: str = "judge") -> None:
    row = {"call_id": f"{number}{item}{model}", "request_hash": "h", "role": "judge", "verdict": "answered"}
    row |= {"endpoint": "chat", "model": model}
    used = {"prompt_tokens": 100, "completion_tokens": 10, "cost_usd": cost, "asked_at": BEGAN + timedelta(days=number)}
    whose = {"stage": name, "item_id": item, "run_id": f"r{number}"}
    lake.append("calls", [{**row, **used, **whose}], Commit(f"calls{number}{item}{model}", 1))


def test_what_was_never_measured_is_a_default_and_says_so(context: Context) -> None:
    (found,) = estimate([stage()], {"s": Settings()}, context)
    assert (found.items, found.measured) == (8, 0)
    assert found.seconds == 8 * DEFAULT_SECONDS and found.requests == {"mapillary": 8 * DEFAULT_REQUESTS}
    assert found.calls == 8 and found.usage.cost_usd == pytest.approx(8 * (2000 * 100 + 500 * 1000) / 1e6)


def test_the_last_runs_are_multiplied(context: Context) -> None:
    lake = context.lake
    ran(lake, 0, 1, 9_999, {"mapillary search": [9_999, 1]})  # too long ago to count
    for number in range(1, LAST_RUNS + 1):
        ran(lake, number, 4, 2.0, {"mapillary search": [12, 400], "chat": [4, 50], "elsewhere": [1, 1]})
    ran(lake, 99, 1, 9_999, {}, name="another")
    ran(lake, 98, 0, 9_999, {})  # did nothing, tells nothing
    asked(lake, 1, "b", 0.5)
    asked(lake, 1, "a", 1.0)
    asked(lake, 2, "a", 1.5)
    asked(lake, 1, "z", 99.0, name="another")
    (found,) = estimate([stage()], {"s": Settings()}, context)
    assert found.measured == 4 * LAST_RUNS
    assert found.seconds == pytest.approx(8 * 0.5)
    assert found.requests == {"mapillary search": pytest.approx(24)} and found.bytes["mapillary search"] == 800
    # three calls for two items
    assert found.calls == pytest.approx(12)
    assert found.usage.cost_usd == pytest.approx(12 * (100 * 100 + 10 * 1000) / 1e6), (
        "at the price of today, not of then"
    )
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (pytest.approx(1200), pytest.approx(120))


def test_a_price_that_is_not_known_leaves_the_money_unknown(context: Context) -> None:
    asked(context.lake, 1, "a", 0.5)
    models = ModelsSettings.model_validate({"endpoints": {"own": {"base_url": "http://127.0.0.1:9/v1"}}})
    models = models.model_copy(update={"roles": {"judge": Role(endpoint="own", model="judge")}})
    unpriced = replace(context, connections=connect(ServicesSettings(), {}, models=models))
    (found,) = estimate([stage()], {"s": Settings()}, unpriced)
    assert found.usage.cost_usd is None and found.calls == 8


def test_history_is_of_the_model_that_will_be_asked(context: Context) -> None:
    """What the offline world's judge took, and that it was free, says nothing of a vendor's."""
    ran(context.lake, 1, 8, 0.1, {})
    for item in ("a", "b"):
        asked(context.lake, 1, item, 0.0, model="another")
    (found,) = estimate([stage()], {"s": Settings()}, context)
    assert found.measured == 0 and found.usage.cost_usd == pytest.approx(8 * (2000 * 100 + 500 * 1000) / 1e6)
    asked(context.lake, 1, "a", 0.0)
    (found,) = estimate([stage()], {"s": Settings()}, context)
    assert (
        found.measured == 8
        and found.usage.prompt_tokens == pytest.approx(800)
        and found.usage.cost_usd == pytest.approx(0.16)
    )


def test_tokens_a_minute_are_the_least_time(context: Context) -> None:
    services = ServicesSettings.model_validate({"chat": {"tokens_per_minute": 1000}})
    slow = replace(context, connections=connect(services, {}, models=context.connections.chat.models.settings))
    (found,) = estimate([stage()], {"s": Settings()}, slow)
    assert found.seconds == pytest.approx(8 * 2500 / 1000 * 60)


def test_a_limit_a_minute_is_the_least_time(context: Context) -> None:
    ran(context.lake, 1, 1, 0.1, {"mapillary search": [100, 1]})
    slow = replace(
        context.connections,
        street_view={"mapillary": Connection("mapillary", MapillaryEndpoint(search_per_minute=100))},
    )
    (found,) = estimate([stage()], {"s": Settings()}, replace(context, connections=slow))
    assert found.seconds == pytest.approx(8 * 60)


def test_steps_whose_input_is_not_made_yet_count_what_comes_before_them(context: Context) -> None:
    joined = ColumnStage("j", ("gaps",), ("duplicates",), lambda inputs, settings: (pl.DataFrame(), pl.DataFrame()))
    last = stage(name="t", reads=("duplicates",), writes=("judgements",), items=lambda inputs, settings: 1 / 0)
    first, second = estimate([stage(), joined, last], {"s": Settings(), "t": Settings()}, context)
    assert (first.items, second.items) == (8, 8) and not first.notes
    assert second.notes == ["duplicates not made yet: all items of s are counted"]


def test_a_step_after_one_that_has_work_says_that_more_may_come(context: Context) -> None:
    gap = {"place_id": "p0", "kind": "photo", "wanted": 1, "got": 0, "reason": "no_image"}
    context.lake.upsert("gaps", [gap], Commit("x", 1))
    last = stage(name="t", reads=("places", "gaps"), writes=("judgements",))
    _, second = estimate([stage(), last], {"s": Settings(), "t": Settings()}, context)
    assert second.notes == ["what s finds comes on top"]


def test_limits_say_how_long_and_how_many_days() -> None:
    requests = {"mapillary search": 250.0, "mapillary": 60.0, "mapillary tiles": 2500.0, "mapillary picture": 9e9}

    def found(**settings: Any) -> list[tuple[Any, ...]]:
        endpoint = MapillaryEndpoint(**settings)
        street_view = {"mapillary": Connection("mapillary", endpoint)}
        connections = replace(connect(ServicesSettings(), {}), street_view=street_view)
        return [(one.kinds, one.minutes, one.days) for one in limits(requests, connections)]

    search, entity, tiles = "mapillary search", "mapillary", "mapillary tiles"
    assert found(requests_per_minute=600, search_per_minute=100, tiles_per_day=1000) == [
        ((search,), pytest.approx(2.5), 1),
        ((entity, tiles), pytest.approx(2560 / 600), 1),  # one rate for both
        ((tiles,), 0.0, 3),
    ]
    # The day's requests are of every kind, whatever has a rate of its own.
    assert found(search_per_minute=100, requests_per_day=1000)[0] == ((search, entity, tiles), 0.0, 3)
