"""The estimate of a second collection, from what the first one took, against what it then sends."""

from pathlib import Path
from typing import Any

import pytest

from schemas.settings.collect import CollectSettings
from tasks.collect import recheck, street_view
from tasks.lake import Commit, Lake
from tasks.runtime.estimate import estimate
from tasks.runtime.runner import run

SETTINGS = CollectSettings(photos=0, panorama_width=512, panorama_min_pixels=1, satellite={"enabled": False})
STAGES = [recheck.STAGE, street_view.STAGE]

pytestmark = pytest.mark.usefixtures("in_process")


@pytest.mark.whole
def test_the_next_run_costs_what_the_last_one_did(earth: Any, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    spots = [earth.world.place(k) for k in range(50)]
    where = {"country": "FR", "split": "train"}
    rows = [{"place_id": f"p{k}", "lat": spot.lat, "lon": spot.lon, **where} for k, spot in enumerate(spots)]
    lake.upsert("places", rows[:20], Commit("plan", 1))
    context, settings = earth.context(lake), {stage.name: SETTINGS for stage in STAGES}
    assert estimate(STAGES, settings, context)[1].measured == 0

    def sent() -> tuple[int, int]:
        return sum(earth.log("requests").values()), sum(earth.log("bytes").values())

    earth.forget()
    assert run(street_view.STAGE, SETTINGS, context).failed == 0
    first_requests, first_bytes = sent()
    lake.upsert("places", rows, Commit("plan", 2))
    earth.forget()
    files = sorted(lake.root.rglob("*"))
    checks, places = estimate(STAGES, settings, context)
    # It asks and writes nothing.
    assert sent() == (0, 0) and sorted(lake.root.rglob("*")) == files
    assert checks.items == 0 and (places.items, places.measured) == (30, 20)
    # What was measured is what was sent.
    assert sum(places.requests.values()) == pytest.approx(first_requests * 30 / 20)
    assert sum(places.bytes.values()) == pytest.approx(first_bytes * 30 / 20, rel=0.02)
    assert run(street_view.STAGE, SETTINGS, context).failed == 0
    requests, size = sent()
    assert sum(places.requests.values()) == pytest.approx(requests, rel=0.3)
    assert sum(places.bytes.values()) == pytest.approx(size, rel=0.3)
