"""`geofix up`: the scheduled refresh of prefect.yaml, run by a local worker."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.lake import Lake

# The smallest refresh that does real work; train and evaluation are not part of it.
OVERRIDES = ["plan.places=3", "plan.countries=[DE]", "collect.photos=0", "offline.port=8792"]


def geofix(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    command = [sys.executable, "-m", "flows.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=environment)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[tuple[Lake, dict[str, Any]]]:
    settings = tmp_path / "own.yaml"
    settings.write_text("offline: {port: 8792}\n")
    started = geofix("up", "--lake", str(tmp_path / "lake"), "--config", str(settings), "--json")
    try:
        assert started.returncode == 0, started.stderr
        yield Lake(tmp_path / "lake"), json.loads(started.stdout)
    finally:
        stopped = geofix("down", "--lake", str(tmp_path / "lake"))
    assert stopped.returncode == 0, stopped.stderr
    with pytest.raises(httpx.ConnectError):
        httpx.get(json.loads(started.stdout)["api"] + "/health", trust_env=False)


def test_a_local_worker_runs_the_scheduled_refresh(up: tuple[Lake, dict[str, Any]]) -> None:
    lake, state = up
    assert state["deployments"]["refresh/nightly"] == "cron 0 3 * * * UTC"
    api = httpx.Client(base_url=state["api"], trust_env=False, timeout=30)
    deployment = api.get("/deployments/name/refresh/nightly").json()
    assert [schedule["active"] for schedule in deployment["schedules"]] == [True]
    options = {"lake": str(lake.root), "overrides": OVERRIDES}
    run = api.post(
        f"/deployments/{deployment['id']}/create_flow_run",
        json={"parameters": {"options": options}, "state": {"type": "SCHEDULED"}},
    ).json()
    end = time.monotonic() + 400
    while (state_type := api.get(f"/flow_runs/{run['id']}").json()["state"]["type"]) not in _ENDS:
        assert time.monotonic() < end, f"still {state_type}"
        time.sleep(1)
    log = (lake.root / ".state" / "prefect-worker.log").read_text()[-3000:]
    assert state_type == "COMPLETED", log
    assert lake.read("places").height == 3
    assert lake.read("snapshots").height == 1
    keys = {artifact["key"] for artifact in api.post("/artifacts/filter", json={}).json()}
    assert keys >= {"stage-plan", "stage-collect", "stage-curate-judge", "stage-curate-labels", "stage-review"}
    # The scheduler plans the nightly run ahead of time; with an incompatible sqlalchemy it silently does not.
    while not _planned_for_night(api):
        assert time.monotonic() < end, "the scheduler planned no nightly run"
        time.sleep(1)


_ENDS = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


def _planned_for_night(api: httpx.Client) -> bool:
    wanted = {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}}
    found = api.post("/flow_runs/filter", json=wanted).json()
    return any(run["expected_start_time"][11:16] == "03:00" for run in found)
