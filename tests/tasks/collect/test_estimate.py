"""The estimate against what a run then really sends: requests and bytes, on the offline world."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from schemas.settings.collect import CollectSettings
from tasks.collect import recheck, satellite, street_view
from tasks.collect.estimate import estimate
from tasks.lake import Lake
from tasks.runtime.estimate import StageEstimate
from tasks.runtime.runner import Context, run
from tasks.services.meter import Tally

WITHIN = 0.2
SETTINGS = CollectSettings(
    photos=0,
    panorama_width=512,
    panorama_min_pixels=1,
    refresh={"after_days": 0},
    estimate={"places": 30},
    satellite={"enabled": False},
)

pytestmark = pytest.mark.usefixtures("in_process")


def estimated(settings: CollectSettings, context: Context) -> tuple[list[StageEstimate], Tally]:
    return asyncio.run(estimate(settings, context))


def total_of(stages: list[StageEstimate]) -> tuple[float, float]:
    return sum(stage.all_requests for stage in stages), sum(stage.all_bytes for stage in stages)


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
    found, asked = estimated(SETTINGS, context)
    assert sorted(context.lake.root.rglob("*")) == files
    # It says exactly what it asked itself, and no picture was among it.
    assert (sum(asked.requests.values()), sum(asked.bytes.values())) == sent(earth)
    assert earth.log("bytes").get("mapillary-cdn", 0) == 0
    street = found[1]
    assert (street.sampled, street.items) == (30, 56)
    assert street.seconds > 0
    earth.forget()
    collect(context)
    requests, size = sent(earth)
    assert near(total_of(found)[0], requests) and near(total_of(found)[1], size)
    assert near(street.requests["mapillary picture"], earth.log("requests")["mapillary-cdn"])
    assert abs(street.all_requests - requests) <= street.requests_margin

    # Everything is due, some is gone and some has changed: re-checks, replacements, places that lack something.
    earth.faults(
        {"service": "*", "kind": "deleted", "rate": 0.15}, {"service": "*", "kind": "changed", "rate": 0.2}, seed=4
    )
    earth.forget()
    again, _ = estimated(SETTINGS, context)
    assert earth.log("bytes").get("mapillary-cdn", 0) == 0
    assert [word in str(again[0].notes) for word in ("gone", "changed")] == [True, True]
    earth.forget()
    collect(context)
    requests, size = sent(earth)
    assert near(total_of(again)[0], requests), (again, earth.log("requests"))
    assert near(total_of(again)[1], size), (again, earth.log("bytes"))

    # Nothing is due: nothing is asked, and nothing would be.
    earth.forget()
    never = SETTINGS.model_copy(update={"refresh": SETTINGS.refresh.model_copy(update={"after_days": None})})
    nothing, _ = estimated(never, context)
    assert total_of(nothing) == (0, 0) and sent(earth) == (0, 0)


def test_finding_out_takes_a_small_part_of_the_day(earth: Any, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    earth.plan(lake, 50, empty=6)
    found, asked = estimated(SETTINGS, earth.context(lake, requests_per_day=400))
    street = found[1]
    assert street.sampled < 30 and "a tenth of what is left of today" in str(street.notes)
    assert sum(asked.requests.values()) - asked.requests["mapillary picture"] <= 60


def test_satellite_pictures_are_estimated_by_their_scenes(earth: Any, tmp_path: Path) -> None:
    # Small, of few scenes, and with a single band: the world paints what is read of it.
    small = {"size_px": 64, "assets": "visual", "max_scenes": 2, "tries": 2}
    small |= {"start": "2023-07-01", "end": "2023-07-20"}
    wanted = CollectSettings(satellite=small, estimate={"places": 2, "scenes": 2})
    lake = Lake(tmp_path / "lake")
    earth.plan(lake, 3)
    context = earth.context(lake)
    found = estimated(wanted, context)[0][2]
    assert (found.sampled, found.items) == (2, 3)
    earth.forget()
    run(satellite.STAGE, wanted, context)
    requests, size = sent(earth)
    assert near(found.all_requests, requests), (found, earth.log("requests"))
    assert near(found.all_bytes, size), (found, earth.log("bytes"))
    assert near(found.bytes["stac file"], earth.log("bytes")["blob"])
