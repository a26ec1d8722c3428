"""The estimate against what a run then really sends: requests and bytes, on the offline world."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.settings.collect import CollectSettings
from schemas.settings.services import MapillaryEndpoint
from tasks.collect import recheck, satellite, street_view
from tasks.collect.forecast import estimate as estimating
from tasks.collect.forecast.budgets import limits
from tasks.collect.forecast.dry import DryScenes
from tasks.collect.forecast.estimate import Estimate, estimate
from tasks.lake import Lake
from tasks.runtime.runner import Context, run
from tasks.services import Connection

WITHIN = 0.2
SETTINGS = CollectSettings(
    photos=0,
    panorama_width=512,
    panorama_min_pixels=1,
    refresh={"after_days": 0},
    estimate={"places": 12},
    satellite={"enabled": False},
)

pytestmark = pytest.mark.usefixtures("in_process")


def estimated(settings: CollectSettings, context: Context) -> Estimate:
    return asyncio.run(estimate(settings, context))


def total_of(found: Estimate) -> tuple[float, float]:
    return sum(s.requests.value for s in found.stages), sum(s.bytes.value for s in found.stages)


def sent(earth: Any) -> tuple[int, int]:
    return sum(earth.log("requests").values()), sum(earth.log("bytes").values())


def near(guess: float, truth: float) -> bool:
    return abs(guess - truth) <= WITHIN * truth


def collect(context: Context, settings: CollectSettings = SETTINGS) -> None:
    for stage in (recheck.STAGE, street_view.STAGE):
        assert run(stage, settings, context).failed == 0


@pytest.fixture
def context(earth: Any, tmp_path: Path) -> Context:
    lake = Lake(tmp_path / "lake")
    earth.plan(lake, 50, empty=6)
    return earth.context(lake)


def test_the_estimate_is_right_and_fetches_and_writes_nothing(earth: Any, context: Context) -> None:
    files = sorted(context.lake.root.rglob("*"))
    found = estimated(SETTINGS, context)
    assert sorted(context.lake.root.rglob("*")) == files
    # It says exactly what it asked itself, and no picture was among it.
    assert (found.asked.total_requests, found.asked.total_bytes) == sent(earth)
    assert earth.log("bytes").get("mapillary-cdn", 0) == 0
    street = found.stages[1]
    assert 12 <= street.sampled < street.items == 56
    earth.forget()
    collect(context)
    requests, size = sent(earth)
    assert near(total_of(found)[0], requests) and near(total_of(found)[1], size)
    assert near(found.requests()["picture"], earth.log("requests")["mapillary-cdn"])
    assert street.requests.low <= requests <= street.requests.high

    # Everything is due, some is gone and some has changed: re-checks, replacements, places that lack something.
    earth.faults(
        {"service": "*", "kind": "deleted", "rate": 0.15}, {"service": "*", "kind": "changed", "rate": 0.2}, seed=4
    )
    earth.forget()
    again = estimated(SETTINGS, context)
    assert earth.log("bytes").get("mapillary-cdn", 0) == 0
    assert [word in str(again.stages[0].notes) for word in ("gone", "changed")] == [True, True]
    earth.forget()
    collect(context)
    requests, size = sent(earth)
    assert near(total_of(again)[0], requests), (again.stages, earth.log("requests"))
    assert near(total_of(again)[1], size), (again.stages, earth.log("bytes"))

    # Nothing is due: nothing is asked, and nothing would be.
    earth.forget()
    never = SETTINGS.model_copy(update={"refresh": SETTINGS.refresh.model_copy(update={"after_days": None})})
    nothing = estimated(never, context)
    assert total_of(nothing) == (0, 0) and sent(earth) == (0, 0)


def test_finding_out_takes_a_small_part_of_the_day(earth: Any, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    earth.plan(lake, 50, empty=6)
    found = estimated(SETTINGS, earth.context(lake, requests_per_day=400))
    street = found.stages[1]
    assert street.sampled < 30 and "a tenth of what is left of today" in str(street.notes)
    assert found.asked.total_requests - found.asked.requests["picture"] <= 60


def test_satellite_pictures_are_estimated_by_their_scenes(earth: Any, tmp_path: Path) -> None:
    # Small, of few scenes, and with a single band: the world paints what is read of it.
    small = {"size_px": 64, "assets": "visual", "max_scenes": 2, "tries": 2}
    small |= {"start": "2023-07-01", "end": "2023-07-20"}
    wanted = CollectSettings(satellite=small, estimate={"scenes": 2, "most_scenes": 2})
    lake = Lake(tmp_path / "lake")
    earth.plan(lake, 3)
    context = earth.context(lake)
    found = asyncio.run(_scenes(wanted, context))
    assert (found.sampled, found.items) == (2, 3)
    earth.forget()
    run(satellite.STAGE, wanted, context)
    requests, size = sent(earth)
    assert near(found.requests.value, requests), (found, earth.log("requests"))
    assert near(found.bytes.value, size), (found, earth.log("bytes"))
    assert near(found.kinds["asset"][1], earth.log("bytes")["blob"])


async def _scenes(settings: CollectSettings, context: Context) -> estimating.StageEstimate:
    scenes = DryScenes(context.connections.stac, settings)
    try:
        return await estimating._scenes(settings, context, scenes)
    finally:
        await scenes.close()


def test_budgets_say_how_long_and_how_many_days(context: Context) -> None:
    endpoint = MapillaryEndpoint(requests_per_minute=600, search_per_minute=100, tiles_per_day=1000)
    connections = replace(context.connections, mapillary=Connection("mapillary", endpoint))
    limited = Context(context.lake, connections)
    kinds = {"search": (250.0, 0.0), "entity": (60.0, 0.0), "tiles": (2500.0, 0.0), "picture": (9e9, 0.0)}
    found = {limit.kinds: limit for limit in limits(kinds, limited)}
    assert set(found) == {("search",), ("tiles", "entity"), ("tiles",)}
    assert found["search",].minutes == pytest.approx(2.5)
    assert found["tiles", "entity"].minutes == pytest.approx(2560 / 600)  # one pace for both
    assert (found["tiles",].left_today, found["tiles",].days) == (1000, 3)
    assert found["search",].left_today is None and found["search",].days == 1
    # The day's requests are of every kind, whatever has a pace of its own.
    endpoint = MapillaryEndpoint(requests_per_minute=600, search_per_minute=100, requests_per_day=1000)
    limited = Context(context.lake, replace(connections, mapillary=Connection("mapillary", endpoint)))
    found = {limit.kinds: limit for limit in limits(kinds, limited)}
    assert set(found) == {("search",), ("tiles", "entity"), ("search", "tiles", "entity")}
    assert found["search", "tiles", "entity"].days == 3
    assert found["search", "tiles", "entity"].per_minute is None
    together = MapillaryEndpoint(requests_per_minute=600, requests_per_day=1000)
    limited = Context(context.lake, replace(connections, mapillary=Connection("mapillary", together)))
    assert [(one.kinds, one.per_minute, one.per_day) for one in limits(kinds, limited)] == [
        (("search", "tiles", "entity"), 600, 1000)
    ]
