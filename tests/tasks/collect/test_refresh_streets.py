"""Refreshes against a service whose parts do not agree: its search, its metadata and its image host."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable

from schemas.errors import LakeError
from schemas.settings.collect import CollectSettings
from schemas.settings.services import MapillaryEndpoint, ServicesSettings
from tasks.collect import recheck, street_view
from tasks.collect.previous import is_lost
from tasks.lake import Commit, Lake
from tasks.lake.blobs import LocalBlobs
from tasks.lake.image_store import ImageStore
from tasks.runtime.runner import Context, StageResult, run
from tasks.services import connect

HERE = {"lat": 50.0001, "lon": 8.0}
FARTHER = {"lat": 50.003, "lon": 8.0}

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("in_process")]


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
        """Pictures without a live row; of others older versions may be there as tombstones."""
        rows = self.lake.scan("images").filter(pl.col("tombstone").is_not_null()).collect()
        ended = rows.join(self.lake.read("images"), on="image_id", how="anti")
        return dict(ended.select("source_id", "tombstone").iter_rows())

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


async def test_a_picture_found_deleted_for_one_place_is_asked_for_at_once_for_the_others(refreshes: Refreshes) -> None:
    streets = refreshes.streets
    await refreshes.collect()
    refreshes.plan("q", 50.0002)
    await refreshes.collect(settings(30))
    assert refreshes.live() == ["11", "11"]
    long_ago = {"fetched_at": "fetched_at - INTERVAL '40 days'"}
    DeltaTable(str(refreshes.lake.root / "tables" / "images")).update(long_ago, predicate="place_id = 'p'")
    streets.shots["11"].fault = "deleted"
    await refreshes.collect(settings(30))
    assert refreshes.live() == ["11"], "of the other place nothing was due"
    await refreshes.collect(settings(30))
    assert refreshes.live() == [] and refreshes.status() == [("deleted", 1), ("deleted", 1)]
    assert all(result.nothing_to_do for result in await refreshes.collect(settings(30)))


@pytest.mark.parametrize("days", [30, None])
async def test_a_picture_whose_file_is_lost_is_fetched_again_by_the_next_run(
    refreshes: Refreshes, days: float | None
) -> None:
    streets, lake = refreshes.streets, refreshes.lake
    streets.put("21", lat=50.5, lon=8.0)
    refreshes.plan("q", 50.5)
    await refreshes.collect(settings(days))
    (row,) = lake.read("images").filter(source_id="11").rows(named=True)
    path = lake.images.path(row["sha256"], row["extension"])
    path.unlink()
    checked, redone = await refreshes.collect(settings(days))
    assert (checked.kept, redone.kept, redone.skipped) == (1, 1, 1) and refreshes.status() == [("lost", 1)]
    assert lake.images.read(row["sha256"], row["extension"])
    assert (streets.asked["picture 11"], streets.asked["picture 21"]) == (1, 0)
    assert all(result.nothing_to_do for result in await refreshes.collect(settings(days))) and not streets.asked
    # It is lost once more while its host is out: told once, tried by every run until it is there.
    path.unlink()
    streets.shots["11"].fault = "outage"
    for _ in range(2):
        await refreshes.collect(settings(days), failing=True)
        assert refreshes.status() == [("lost", 2)] and refreshes.live() == ["11", "21"]
    streets.shots["11"].fault = None
    await refreshes.collect(settings(days))
    assert path.exists() and refreshes.live() == ["11", "21"]
    assert all(result.nothing_to_do for result in await refreshes.collect(settings(days)))


async def test_a_lost_picture_that_is_deleted_too_ends(refreshes: Refreshes) -> None:
    await refreshes.collect(settings(30))
    for path in (refreshes.lake.root / "images").rglob("*.jpg"):
        path.unlink()
    refreshes.streets.shots["11"].fault = "deleted"
    await refreshes.collect(settings(30))
    assert refreshes.live() == [] and refreshes.status() == [("deleted", 1)]


def test_a_store_that_cannot_be_looked_at_has_lost_nothing(tmp_path: Path) -> None:
    store = ImageStore(LocalBlobs(tmp_path))
    kept, gone = store.put(b"kept", "jpg"), "ab" * 32
    images = pl.DataFrame({"sha256": [gone, kept, kept], "extension": ["jpg", "png", "jpg"]})
    assert is_lost(images, store).to_list() == [True, True, False]
    (tmp_path / "images" / gone[:2]).write_text("a file where a folder should be")
    with pytest.raises(LakeError, match="cannot be read"):
        is_lost(images, store)


@pytest.mark.parametrize("fault", ["truncated", "html", "small"])
async def test_what_comes_instead_of_a_picture_and_is_none_costs_nothing(refreshes: Refreshes, fault: str) -> None:
    streets = refreshes.streets
    await refreshes.collect()
    before = refreshes.lake.read("images")
    streets.shots["11"].fault = fault
    for _ in range(2):
        await refreshes.collect()
        after = refreshes.lake.read("images")
        assert after["sha256"].equals(before["sha256"]) and refreshes.ended() == {}
        assert refreshes.lake.read("rejects").is_empty()
    status = {"small": ("same", 1)}.get(fault, ("unavailable", 0))  # a small picture is one: looked at, not taken
    assert refreshes.status() == [status]
    streets.shots["11"].fault = None
    streets.shots["11"].data = streets.original("11") + b"changed"
    await refreshes.collect()
    assert refreshes.status() == [("changed", status[1] + 1)]
    assert refreshes.lake.read("images")["source_sha256"][0] != before["source_sha256"][0]


async def test_a_picture_that_its_host_refuses_holds_nothing_up_for_ever(refreshes: Refreshes) -> None:
    streets = refreshes.streets
    streets.put("12", **FARTHER)
    refreshes.plan("q", 50.003)
    streets.shots["11"].fault = "forbidden"
    _, first = await refreshes.collect(failing=True)
    assert (first.kept, first.failed) == (1, 1)
    _, second = await refreshes.collect(settings(30))
    assert (second.kept, second.failed) == (1, 0) and refreshes.live() == ["12", "12"]


async def test_a_check_that_its_host_refuses_holds_nothing_up_for_ever(refreshes: Refreshes) -> None:
    streets = refreshes.streets
    streets.put("12", **FARTHER)
    refreshes.plan("q", 50.003)
    await refreshes.collect()
    streets.shots["11"].fault = "forbidden"
    for fault, failed in (("forbidden", 2), ("forbidden", 2), (None, 0)):  # all of them: the host's own trouble
        streets.shots["12"].fault = fault
        checked, _ = await refreshes.collect(failing=failed > 0)
        assert checked.failed == failed
    assert refreshes.live() == ["11", "12"] and refreshes.status() == [("same", 0), ("unavailable", 0)]
