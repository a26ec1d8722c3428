"""Satellite pictures of the offline world over HTTP: the same rows whether its services behave or not."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.offline.server import create_app, serving
from infra.offline.world import World
from schemas.settings.satellite import SatelliteSettings
from schemas.settings.services import ServicesSettings, StacEndpoint
from tasks.collect.satellite.picture import WorkerContext, make_picture
from tasks.geo.distance import distance_km
from tasks.imaging.images import inspect
from tasks.lake import Lake
from tasks.runtime.runner import Kept
from tasks.services import ServiceError, connect
from tasks.services.stac import Stac

SIZE = 96
# A desert town, and Taveuni, which the 180th meridian crosses.
PLACES = {"tamanrasset": (22.785, 5.523), "taveuni": (-16.86, 179.999)}
FAULTS = [
    {"service": "stac", "kind": "status", "status": 429, "rate": 0.3},
    {"service": "stac", "kind": "status", "status": 504, "rate": 0.2},
    {"service": "stac", "kind": "invalid_json", "rate": 0.2},
    {"service": "sas", "kind": "status", "status": 500, "rate": 0.3},
    {"service": "sas", "kind": "expired_url", "rate": 0.3},
    {"service": "blob", "kind": "reset", "rate": 0.1},
    {"service": "blob", "kind": "truncate", "rate": 0.1},
    {"service": "blob", "kind": "content_type", "rate": 0.1},
    {"service": "blob", "kind": "expired_url", "rate": 0.1},
    {"service": "blob", "kind": "status", "status": 503, "rate": 0.1},
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(create_app(World(seed=7, size=300), warm=False)) as address:
        yield address


async def collect(url: str, lake: Lake) -> dict[str, dict[str, Any]]:
    """The places' rows; what fails is tried again, as the frame would on its next run."""
    endpoint = StacEndpoint(base_url=f"{url}/stac/api/stac/v1", backoff_s=0, outage_pause_s=0.01)
    bench = WorkerContext(
        Stac(connect(ServicesSettings(stac=endpoint), {}).stac), lake, SatelliteSettings(size_px=SIZE)
    )

    async def one(name: str, lat: float, lon: float) -> dict[str, Any]:
        item = {"id": f"{name}:centre", "place_id": name, "viewport": "centre", "lat": lat, "lon": lon,
                "metres_per_pixel": 10.0, "size_px": SIZE, "east": 0.0, "north": 0.0}  # fmt: skip
        for _ in range(20):
            try:
                outcome = await make_picture(item, bench)
            except ServiceError as error:
                assert error.retryable or error.kind == "expired", str(error)
                assert "sig=" not in str(error)
                continue
            assert isinstance(outcome, Kept), outcome
            return outcome.rows["images"][0]
        raise AssertionError("never done")

    rows = await asyncio.gather(*(one(name, *at) for name, at in PLACES.items()))
    return {row["place_id"]: {k: v for k, v in row.items() if k not in ("fetched_at", "image_id")} for row in rows}


@pytest.mark.whole
async def test_faults_change_nothing_but_the_time_it_takes(url: str, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "calm")
    calm = await collect(url, lake)
    for name, row in calm.items():
        facts = inspect(lake.images.read(row["sha256"], row["extension"]))
        assert (facts.width, facts.height, facts.format) == (SIZE, SIZE, "JPEG")
        assert distance_km(row["lat"], row["lon"], *PLACES[name]) < 0.01
        about = json.loads(row["metadata_json"])
        assert about["clear_share"] >= 0.9 and about["scenes"] and "sig=" not in str(row)
    with httpx.Client(base_url=url) as control:
        control.delete("/control/log")
        control.post("/control/faults", json={"seed": 5, "rules": FAULTS}).raise_for_status()
        try:
            rough = await collect(url, Lake(tmp_path / "rough"))
            struck = control.get("/control/log").json()["faults"]
        finally:
            control.delete("/control/faults")
    assert rough == calm
    assert sum(struck.values()) > 10, struck  # the weather was really rough
