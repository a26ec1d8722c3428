"""Refreshes against a service whose parts do not agree: its search, its metadata and its image host."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from schemas.settings.collect import CollectSettings
from schemas.settings.services import MapillaryEndpoint, ServicesSettings
from tasks.collect import recheck, street_view
from tasks.frame import Context, StageResult, run
from tasks.lake import Commit, Lake
from tasks.services import connect

HERE = {"lat": 50.0001, "lon": 8.0}
FARTHER = {"lat": 50.003, "lon": 8.0}

pytestmark = pytest.mark.usefixtures("in_process")


def settings(days: float | None = 0, **changed: Any) -> CollectSettings:
    wanted = {"photos": 0, "panorama_width": 512, "half_sizes_m": (500.0,), **changed}
    return CollectSettings(refresh={"after_days": days}, **wanted)


class Refreshes:
    """One place on a lake, collected as often as asked."""

    def __init__(self, streets: Any, path: Path) -> None:
        self.streets, self.lake = streets, Lake(path / "lake")
        self.plan("p", 50.0)
        endpoint = MapillaryEndpoint(base_url=streets.url, backoff_s=0, max_attempts=2)
        self.context = Context(self.lake, connect(ServicesSettings(mapillary=endpoint), {}))

    def plan(self, place_id: str, lat: float) -> None:
        row = {"place_id": place_id, "country": "DE", "lat": lat, "lon": 8.0, "split": "train", "cell": place_id}
        self.lake.upsert("places", [row], Commit(f"plan {place_id}", 1))

    async def collect(self, wanted: CollectSettings | None = None, failing: bool = False) -> list[StageResult]:
        """A refresh; what it asked for is in `streets.asked` afterwards."""
        self.streets.asked = Counter()
        stages = (recheck.STAGE, street_view.STAGE)
        results = [await asyncio.to_thread(run, stage, wanted or settings(), self.context) for stage in stages]
        assert any(result.failed for result in results) == failing, self.lake.read("failures")
        return results

    def live(self) -> list[str]:
        return sorted(self.lake.read("images")["source_id"])

    def ended(self) -> dict[str, str]:
        rows = self.lake.scan("images").filter(pl.col("tombstone").is_not_null()).collect()
        return dict(rows.select("source_id", "tombstone").iter_rows())

    def status(self, subject: str = "image") -> list[tuple[str, int]]:
        return sorted(self.lake.read("checks").filter(subject=subject).select("status", "news").iter_rows())


@pytest.fixture
def refreshes(streets: Any, tmp_path: Path) -> Refreshes:
    streets.put("11", **HERE)
    return Refreshes(streets, tmp_path)


async def test_a_deleted_picture_that_searches_still_show_does_not_come_back(refreshes: Refreshes) -> None:
    streets = refreshes.streets
    await refreshes.collect()
    streets.shots["11"].fault = "deleted"  # its metadata is gone; searches show it, and its host has its bytes
    for _ in range(3):
        _, redone = await refreshes.collect()
        assert (redone.items_in, redone.rejected) == (1, 1)
        assert refreshes.live() == [] and refreshes.ended() == {"11": "deleted upstream"}
        assert refreshes.status() == [("deleted", 1)] and streets.asked["picture 11"] == 0
    (evidence,) = refreshes.lake.read("gaps")["evidence_json"]
    assert '"problems": {"deleted": 1}' in evidence
    assert streets.asked["image 11"] == 1, "one question, for it alone"
    # A place nearby that never had it does not get it either, and a better-lasting one is taken instead.
    refreshes.plan("q", 50.0002)
    streets.put("12", **FARTHER)
    await refreshes.collect()
    assert refreshes.live() == ["12", "12"]


async def test_a_deleted_picture_that_is_there_again_is_taken_again(refreshes: Refreshes) -> None:
    await refreshes.collect()
    refreshes.streets.shots["11"].fault = "deleted"
    await refreshes.collect()
    refreshes.streets.shots["11"].fault = None
    await refreshes.collect()
    assert refreshes.live() == ["11"] and refreshes.ended() == {}
    await refreshes.collect()
    assert refreshes.status() == [("same", 1)]


async def test_whether_a_deleted_picture_is_back_cannot_be_told_by_a_service_that_is_out(refreshes: Refreshes) -> None:
    streets = refreshes.streets
    await refreshes.collect()
    streets.shots["11"].fault = "deleted"
    await refreshes.collect()
    streets.shots["11"].fault = "metadata_outage"
    _, redone = await refreshes.collect(failing=True)
    assert (redone.failed, redone.rejected) == (1, 0) and refreshes.live() == []
