"""Collect from the offline world over HTTP: the same rows whether the services behave or not."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.offline.server import create_app, serving
from infra.offline.world import World
from schemas.settings.collect import CollectSettings
from schemas.settings.services import MapillaryEndpoint, ServicesSettings
from tasks.collect.providers.mapillary.client import Mapillary
from tasks.collect.providers.mapillary.streets import MapillaryStreets
from tasks.collect.street_view import WorkerContext, work
from tasks.imaging.images import inspect
from tasks.lake import Lake
from tasks.runtime.runner import Kept
from tasks.services import ServiceError, connect

PLACES = 6
FAULTS = [
    {"service": "mapillary", "kind": "status", "status": 500, "rate": 0.15},
    {"service": "mapillary", "kind": "status", "status": 403, "rate": 0.1},
    {"service": "mapillary", "kind": "invalid_json", "rate": 0.1},
    {"service": "mapillary-tiles", "kind": "status", "status": 504, "rate": 0.15},
    {"service": "mapillary-tiles", "kind": "invalid_json", "rate": 0.15},  # cut off under the right length
    {"service": "mapillary-tiles", "kind": "reset", "rate": 0.1},
    {"service": "mapillary-cdn", "kind": "reset", "rate": 0.15},
    {"service": "mapillary-cdn", "kind": "truncate", "rate": 0.15},
    {"service": "mapillary-cdn", "kind": "content_type", "rate": 0.1},
    {"service": "mapillary-cdn", "kind": "expired_url", "rate": 0.2},
    {"service": "mapillary-cdn", "kind": "status", "status": 502, "rate": 0.1},
]


@pytest.fixture(scope="module")
def world() -> World:
    return World(seed=7, size=300, pano_width=2048)


@pytest.fixture(scope="module")
def url(world: World) -> Iterator[str]:
    with serving(create_app(world)) as address:
        yield address


async def collect(url: str, world: World, lake: Lake) -> tuple[list[dict[str, Any]], int]:
    """All rows of the first places, failed ones tried again as the frame would, and how often that was needed."""
    endpoint = MapillaryEndpoint(base_url=f"{url}/mapillary", backoff_s=0, max_attempts=3, outage_pause_s=0.05)
    mapillary = Mapillary(connect(ServicesSettings(mapillary=endpoint), {}).street_view["mapillary"])
    # Four pictures are a crowd here, so that most places ask for tiles as well.
    bench = WorkerContext((MapillaryStreets(mapillary),), lake, CollectSettings(panorama_width=1024, crowded_rows=4))
    failures = 0

    async def one(index: int) -> list[dict[str, Any]]:
        nonlocal failures
        place = world.place(index)
        for _ in range(20):
            try:
                outcome = await work({"id": f"place{index}", "lat": place.lat, "lon": place.lon}, bench)
            except ServiceError as error:
                assert error.retryable or error.kind == "expired", str(error)
                failures += 1
                continue
            assert isinstance(outcome, Kept), outcome
            return outcome.rows["images"]
        raise AssertionError("never done")

    rows = [row for found in await asyncio.gather(*(one(i) for i in range(PLACES))) for row in found]
    # Names differ from lake to lake, by design.
    return [
        {name: value for name, value in row.items() if name not in ("fetched_at", "image_id")} for row in rows
    ], failures


@pytest.mark.slow
async def test_faults_change_nothing_but_the_time_it_takes(url: str, world: World, tmp_path: Path) -> None:
    calm, failures = await collect(url, world, Lake(tmp_path / "calm"))
    assert failures == 0
    assert len(calm) >= PLACES
    with httpx.Client(base_url=url) as control:
        control.delete("/control/log")
        control.post("/control/faults", json={"seed": 3, "rules": FAULTS}).raise_for_status()
        try:
            rough, _ = await collect(url, world, Lake(tmp_path / "rough"))
            struck = control.get("/control/log").json()["faults"]
        finally:
            control.delete("/control/faults")
    assert rough == calm
    assert sum(struck.values()) > 10, struck  # the weather was really rough,
    assert any(name.startswith("mapillary-tiles:") for name in struck), struck  # also for tiles


async def test_what_is_stored_is_what_the_row_says(url: str, world: World, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    rows, _ = await collect(url, world, lake)
    assert {row["kind"] for row in rows} == {"panorama", "photo"}
    for row in rows:
        facts = inspect(lake.images.read(row["sha256"], row["extension"]))
        assert (facts.width, facts.height) == (row["width"], row["height"])
        assert row["source_id"].isdigit() and row["licence"] == "CC BY-SA 4.0" and row["creator"] in row["attribution"]
        assert "?" not in row["request_url"] and "MLY" not in str(row)
