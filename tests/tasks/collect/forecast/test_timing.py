"""How long a run would take, from what was measured and what is allowed."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from schemas.settings.services import MapillaryEndpoint, ServicesSettings
from schemas.settings.spread import SpreadSettings
from tasks.collect.forecast.tempo import Tempo
from tasks.collect.forecast.timing import Load, duration, pace_of
from tasks.collect.recheck import STAGE
from tasks.lake import Commit, Lake
from tasks.runtime.runner import Context, Resources
from tasks.services import connect

TWENTY_AT_ONCE = replace(STAGE, resources=Resources(concurrency=10))


def taken(tmp_path: Path, load: Load, kinds: dict[str, tuple[float, float]], **endpoint: Any) -> tuple[float, str]:
    services = ServicesSettings(mapillary=MapillaryEndpoint(**endpoint))
    context = Context(Lake(tmp_path / "lake"), connect(services, {"MAPILLARY_TOKEN": "x"}), SpreadSettings(workers=2))
    return duration(TWENTY_AT_ONCE, load, kinds, context.connections.mapillary, context, 10.0)


ELSEWHERE = {"base_url": "https://graph.example"}
LOAD = Load(items=100, tempo=Tempo(waiting_s=4.0, full_s=0.01), pictures=50, size=1e8)


def test_each_bound_by_hand(tmp_path: Path) -> None:
    # 100 items, 20 at once: 100 * 4 / 20 + 100 * 0.01; the line takes 100 MB / 10 MB/s.
    assert taken(tmp_path, LOAD, {}, **ELSEWHERE) == (pytest.approx(21.0), "the work on each item")
    assert taken(tmp_path, replace(LOAD, size=3e9), {}, **ELSEWHERE) == (300.0, "the line")
    slow = {**ELSEWHERE, "search_per_minute": 60}
    assert taken(tmp_path, LOAD, {"search": (500.0, 0.0)}, **slow) == (pytest.approx(500.0), "requests a minute")


def test_a_service_on_this_machine_needs_no_line(tmp_path: Path) -> None:
    assert taken(tmp_path, replace(LOAD, size=3e9), {}) == (pytest.approx(21.0), "the work on each item")


def test_the_last_run_knows_better_but_limits_hold(tmp_path: Path) -> None:
    assert taken(tmp_path, replace(LOAD, pace=2.0), {}) == (25.0, "the pace of the last run")
    # Most places bring no picture this time: the pace of pictures would promise no time at all.
    assert taken(tmp_path, replace(LOAD, pace=2.0, pictures=5), {}) == (pytest.approx(21.0), "the work on each item")
    slow = {**ELSEWHERE, "search_per_minute": 60}
    assert taken(tmp_path, replace(LOAD, pace=2.0), {"search": (500.0, 0.0)}, **slow)[1] == "requests a minute"


def test_the_pace_is_that_of_the_last_larger_go(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    assert pace_of(lake, ("panorama",)) is None
    start, rows = datetime(2026, 1, 1, tzinfo=UTC), []
    for count, gap_s in ((30, 2.0), (30, 0.25), (5, 9.0)):  # the last is too few to tell
        start += timedelta(days=1)
        rows += [
            {
                "image_id": f"{count}-{gap_s}-{k}",
                "kind": "panorama",
                "lat": 0.0,
                "lon": 0.0,
                "source": "s",
                "source_id": str(k),
                "licence": "l",
                "attribution": "a",
                "sha256": "0",
                "fetched_at": start + timedelta(seconds=gap_s * k),
            }
            for k in range(count)
        ]
    lake.upsert("images", rows, Commit("r1", 1))  # one run wrote them last
    assert pace_of(lake, ("panorama",)) == pytest.approx(4.0)
    assert pace_of(lake, ("satellite",)) is None
