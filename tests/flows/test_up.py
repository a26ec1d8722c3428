"""`geofix up`: the deployments of prefect.yaml, run by a local worker on a real Prefect server."""

import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import psutil
import pytest

from flows.background import ROOT
from flows.prefect_auth import secret_file
from tasks.curate import STAGES as CURATE
from tasks.lake import Lake

pytestmark = pytest.mark.whole

PORT = 8792
# The smallest run that does real work before and after the review; the demo's test trains. No scene can be had: every
# satellite row fails, after a retry.
FAULTS = {"rules": [{"service": "stac", "kind": "status", "status": 503, "rate": 1.0, "retry_after": 0}]}
OVERRIDES = [
    *("plan.places=5", "plan.countries=[DE, FR, GB]", "collect.panoramas=0"),
    *(f"offline.port={PORT}", "offline.size=2000"),
    *("services.stac.max_attempts=1", "services.stac.backoff_s=0", "flows.retries=1", "flows.retry_delay_s=0.1"),
    "spread.workers=1",
    *(
        "curate.quality.kinds=[photo]",
        "curate.judge.view_max_pixels=300000",
        "synthesize.also=[]",
        "review.data_docs=false",
    ),
    "synthesize.max_images=1",
]
ENDS = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
WAIT_S = 1500.0  # for life only: a busy machine takes its time


class Patient(httpx.HTTPTransport):
    """Asks again while the server's database is busy (503), as Prefect's own client does."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        end = time.monotonic() + WAIT_S
        while True:
            response = super().handle_request(request)
            if response.status_code != 503 or time.monotonic() > end:
                return response
            response.close()
            time.sleep(0.5)


@dataclass
class Up:
    """What `geofix up` started."""

    lake: Lake
    state: dict[str, Any]
    told: list[dict[str, Any]] = field(default_factory=list)  # by the webhook

    @property
    def secret(self) -> str:
        return secret_file(self.lake).read_text().strip()

    @property
    def api(self) -> httpx.Client:
        user, _, password = self.secret.partition(":")
        return self.stranger(auth=(user, password))

    def stranger(self, **options: Any) -> httpx.Client:
        """A client without the secret."""
        return httpx.Client(base_url=self.state["api"], transport=Patient(), trust_env=False, timeout=120, **options)

    def start(self, deployment: str, *overrides: str, **parameters: Any) -> str:
        found = self.api.get(f"/deployments/name/{deployment}").json()
        options = {"overrides": [*OVERRIDES, *overrides]}  # the rest, the lake too, is the deployment's
        made = self.api.post(
            f"/deployments/{found['id']}/create_flow_run",
            json={"parameters": {"options": options, **parameters}, "state": {"type": "SCHEDULED"}},
        )
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    def wait(self, run: str, *names: str) -> dict[str, Any]:
        """The run's state, once it has one of these names or has ended."""
        end = time.monotonic() + WAIT_S
        while True:
            state: dict[str, Any] = self.api.get(f"/flow_runs/{run}").json()["state"]
            if state["name"] in names or state["type"] in ENDS:
                assert state["name"] in names, (state, self.log(run), self.worker_log())
                return state
            if time.monotonic() > end:
                pytest.fail(f"{state['name']}\n{self.worker_log()}\n{self.stacks()}")
            time.sleep(0.5)

    def stacks(self) -> str:
        """Where each of our processes stands: what a run that does not end waits for."""
        found = []
        for process in psutil.process_iter(["pid", "cmdline"]):
            command = " ".join(process.info["cmdline"] or [])
            if any(name in command for name in ("prefect.engine", "infra.offline", "ray::", "broker.py")):
                dump = [str(Path(sys.executable).parent / "py-spy"), "dump", "--pid", str(process.info["pid"])]
                said = subprocess.run(dump, capture_output=True, text=True, check=False, timeout=60)
                found.append(f"{command[:200]}\n{said.stdout[-4000:]}{said.stderr[-500:]}")
        return "\n".join(found)

    def log(self, run: str) -> list[str]:
        wanted = {"logs": {"flow_run_id": {"any_": [run]}}, "limit": 200, "sort": "TIMESTAMP_ASC"}
        return [line["message"] for line in self.api.post("/logs/filter", json=wanted).json()]

    def worker_log(self) -> str:
        return (self.lake.state / "prefect-worker.log").read_text()[-3000:]

    def tasks(self, run: str) -> dict[str, dict[str, Any]]:
        found = self.api.post("/task_runs/filter", json={"flow_runs": {"id": {"any_": [run]}}}).json()
        return {one["name"]: one for one in found}


def geofix(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    command = [sys.executable, "-m", "flows.cli", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=1500, check=False, env={**own, **environment}
    )


@pytest.fixture(scope="module")
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A real HTTP server that keeps what it is told."""
    told: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/secret-path", told
    server.shutdown()


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, webhook: tuple[str, list[dict[str, Any]]]) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up") / "mit Leerraum und Umläut"
    folder.mkdir()
    settings = folder / "own.yaml"
    settings.write_text(f"offline: {{port: {PORT}, size: 2000}}\n")
    url, told = webhook
    started = geofix(
        "up", "--lake", str(folder / "lake"), "--config", str(settings), "--json",
        GEOFIX_WEBHOOK=url, GEOFIX_OFFLINE_FAULTS=json.dumps(FAULTS), NO_PROXY="127.0.0.1",
    )  # fmt: skip
    try:
        assert started.returncode == 0, started.stderr
        yield Up(Lake(folder / "lake"), json.loads(started.stdout), told)
    finally:
        stopped = geofix("down", "--lake", str(folder / "lake"))
    assert stopped.returncode == 0, stopped.stderr
    with pytest.raises(httpx.ConnectError):
        httpx.get(json.loads(started.stdout)["api"] + "/health", trust_env=False)


def test_the_pipeline_suspends_at_review_and_goes_on_when_a_person_approves(up: Up) -> None:
    run = up.start("pipeline/whole", last="synthesize")
    waiting = up.wait(run, "Suspended")
    while waiting["message"] is None:  # it follows at once
        waiting = up.wait(run, "Suspended")
    # One task for each stage. Satellite rows failed, after a retry, and the state says so.
    tasks = up.tasks(run)
    curate = {stage.name for stage in CURATE}
    assert set(tasks) == {"plan", "collect", "collect.recheck", "collect.satellite", *curate, "review"}
    assert tasks["plan"]["state"]["name"] == "Completed"
    assert tasks["collect.satellite"]["state"]["type"] == "COMPLETED"
    assert tasks["collect.satellite"]["state"]["name"] == "FailedRows"
    assert "rows failed in collect.satellite" in tasks["collect.satellite"]["state"]["message"]
    assert (tasks["collect.satellite"]["run_count"], tasks["plan"]["run_count"]) == (2, 1)
    # Our own lines are in the run's log, a warning among them.
    log = up.log(run)
    assert any("using the offline world that runs at port" in line for line in log), log
    assert any("in = " in line and line.startswith("plan:") for line in log), log
    keys = {artifact["key"] for artifact in up.api.post("/artifacts/filter", json={}).json()}
    assert keys >= {"stage-plan", "stage-collect", "stage-curate-labels", "stage-review", "report-plan", "counts"}
    # The webhook was told once, and without the address in any log.
    snapshot = up.lake.read("snapshots").row(0, named=True)
    assert snapshot["status"] == "pending"
    assert waiting["message"] == (
        f"snapshot {snapshot['snapshot_id']} waits for a reviewer; its report: {up.lake.blobs.uri(snapshot['report'])}"
    )
    [told] = [one for one in up.told if one["event"] == "waiting_snapshot"]
    assert (told["flow"], told["lake"], told["snapshot_id"]) == (
        "pipeline", up.lake.uri, snapshot["snapshot_id"],
    )  # fmt: skip
    assert told["counts"]["collect.satellite"]["failed"] > 0
    assert "secret-path" not in up.worker_log() + "".join(log)

    # The form: a decision without a reason is refused, and the run keeps waiting.
    key = waiting["state_details"]["run_input_keyset"]["schema"]
    schema = up.api.get(f"/flow_runs/{run}/input/{key}").json()
    assert set(schema["properties"]) == {"decision", "why", "reviewer", "overrule"}
    assert all(one["description"] for one in schema["properties"].values())
    refused = up.api.post(f"/flow_runs/{run}/resume", json={"run_input": {"decision": "approve"}}).json()
    assert refused["status"] == "REJECT", refused
    decision = {"decision": "approve", "why": "the map looks right", "reviewer": "Ada", "overrule": True}
    resumed = up.api.post(f"/flow_runs/{run}/resume", json={"run_input": decision}).json()
    assert resumed["status"] == "ACCEPT", resumed

    state = up.wait(run, "FailedRows")
    assert "collect.satellite" in state["message"]  # although that was before the pause
    shown = up.api.get(f"/flow_runs/{run}").json()
    assert re.fullmatch(r"pipeline mit Leerraum und Umläut/lake \d{4}-\d\d-\d\d \d\d:\d\d", shown["name"])
    assert set(shown["tags"]) >= {f"lake:{up.lake.uri}", "profile:offline"}
    options = shown["parameters"]["options"]
    assert (options["lake"], options["overrides"]) == (up.lake.uri, OVERRIDES), "with the deployment's, each once"
    snapshot = up.lake.read("snapshots").row(0, named=True)
    assert (snapshot["status"], snapshot["reviewer"], snapshot["why"]) == ("approved", "Ada", "the map looks right")
    # Nothing was done twice: the stages before review ran in this flow run once, but for the retry.
    runs = up.lake.read("runs")["stage"].to_list()
    assert (runs.count("plan"), runs.count("collect"), runs.count("collect.satellite")) == (1, 1, 2)
    assert up.lake.read("runs").filter(pl.col("stage") == "synthesize")["items_in"].sum() > 0
    assert "collect.satellite" in {one["name"] for one in up.tasks(run).values()}


def test_a_cancelled_run_ends_cancelled(up: Up) -> None:
    # Redone from the start, so that it is at work when it is cancelled; Ray starts in the meantime.
    run = up.start("pipeline/whole", "plan.seed=99")
    up.wait(run, "Running")
    end = time.monotonic() + WAIT_S
    while "collect" not in up.tasks(run):
        assert time.monotonic() < end, up.worker_log()
        time.sleep(0.2)
    up.api.post(f"/flow_runs/{run}/set_state", json={"state": {"type": "CANCELLING", "name": "Cancelling"}})
    up.wait(run, "Cancelled")


@pytest.mark.slow
def test_the_command_resumes_a_suspended_run_and_a_rejected_snapshot_ends_it(up: Up) -> None:
    first = set(up.lake.read("snapshots")["snapshot_id"])
    run = up.start("pipeline/whole", "curate.labels.min_score=10")
    up.wait(run, "Suspended")
    [snapshot] = set(up.lake.read("snapshots")["snapshot_id"]) - first
    said = geofix("reject", snapshot, "--why", "too few labels", "--reviewer", "Ada", "--lake", up.lake.uri)
    assert said.returncode == 0, said.stderr
    name = up.api.get(f"/flow_runs/{run}").json()["name"]
    assert f"flow run {name} continues" in said.stdout
    state = up.wait(run, "Rejected")
    assert state["message"] == f"snapshot {snapshot} was rejected by Ada: too few labels"
    assert "synthesize" not in up.tasks(run)


def test_only_the_holder_of_the_secret_is_answered(up: Up, tmp_path: Path) -> None:
    deployment = up.api.get("/deployments/name/pipeline/whole").json()["id"]
    planted = tmp_path / "planted"
    body = {"job_variables": {"command": f"touch {planted}"}, "state": {"type": "SCHEDULED"}}
    evil = {"Origin": "http://evil.example"}
    for client in (up.stranger(), up.stranger(auth=("geofix", "guessed"))):
        for headers in ({}, evil):
            refused = client.post(f"/deployments/{deployment}/create_flow_run", json=body, headers=headers)
            assert refused.status_code == 401 and "access-control-allow-origin" not in refused.headers
    asked = {**evil, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    assert up.stranger().options("/flow_runs/filter", headers=asked).status_code == 400
    own = {"Origin": up.state["api"].removesuffix("/api")}
    for headers, allowed in ((evil, None), (own, own["Origin"])):
        found = up.api.post("/flow_runs/filter", json={"limit": 1}, headers=headers)
        assert (found.status_code, found.headers.get("access-control-allow-origin")) == (200, allowed)
    assert not planted.exists()
    # It is in its file alone, which only its owner reads.
    file, password = secret_file(up.lake), up.secret.partition(":")[2].encode()
    assert file.stat().st_mode & 0o777 == 0o600
    assert not [
        one for one in up.lake.root.rglob("*") if one.is_file() and one != file and password in one.read_bytes()
    ]


def test_a_flow_run_with_an_unknown_parameter_or_another_lake_is_refused(up: Up, tmp_path: Path) -> None:
    deployment = up.api.get("/deployments/name/maintain/weekly").json()["id"]
    new = f"/deployments/{deployment}/create_flow_run"
    refused = up.api.post(new, json={"parameters": {"dryrun": True}})
    assert refused.status_code == 409 and "'dryrun' was unexpected" in refused.json()["detail"]
    elsewhere = str(tmp_path / "elsewhere")
    run = up.api.post(new, json={"parameters": {"options": {"lake": elsewhere}}, "state": {"type": "SCHEDULED"}})
    state = up.wait(run.json()["id"], "Failed")
    assert f"given '{elsewhere}', but this deployment works on '{up.lake.uri}'" in state["message"]
    assert not Path(elsewhere).exists()


def test_the_nightly_refresh_is_scheduled(up: Up) -> None:
    assert up.state["deployments"]["refresh/nightly"] == "cron 0 3 * * * UTC"
    deployment = up.api.get("/deployments/name/refresh/nightly").json()
    assert [schedule["active"] for schedule in deployment["schedules"]] == [True]
    assert deployment["parameters"]["options"]["lake"] == up.lake.uri
    assert up.state["deployments"]["maintain/weekly"] == "cron 0 5 * * 0 UTC"
    assert up.state["deployments"]["benchmark/monthly"] == "cron 0 6 1 * * UTC"
    # The scheduler plans the nightly run ahead of time; with an incompatible sqlalchemy it silently does not.
    end = time.monotonic() + WAIT_S
    while not _planned_for_night(up.api):
        assert time.monotonic() < end, "the scheduler planned no nightly run"
        time.sleep(1)


def _planned_for_night(api: httpx.Client) -> bool:
    wanted = {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}}
    found = api.post("/flow_runs/filter", json=wanted).json()
    return any(run["expected_start_time"][11:16] == "03:00" for run in found)


def test_the_weekly_maintenance_is_scheduled_and_runs(up: Up) -> None:
    assert up.state["deployments"]["maintain/weekly"] == "cron 0 5 * * 0 UTC"
    run = up.start("maintain/weekly", dry_run=True)
    up.wait(run, "Completed")
    wanted = {"artifacts": {"flow_run_id": {"any_": [run]}, "key": {"any_": ["maintain"]}}}
    [artifact] = up.api.post("/artifacts/filter", json=wanted).json()
    assert up.lake.uri in artifact["data"]


def test_the_monthly_benchmark_is_drawn_once_a_cut_off_is_set(up: Up) -> None:
    up.wait(up.start("benchmark/monthly"), "Completed")
    wanted = {"artifacts": {"key": {"any_": ["benchmark"]}}}
    assert up.api.post("/artifacts/filter", json=wanted).json() == []
    up.wait(up.start("benchmark/monthly", "benchmark.cutoff=2999-12-31"), "Failed")  # no month is that new
    assert up.lake.read("benchmarks").is_empty()


def test_what_the_docs_say_deploys_and_keys_come_from_secret_blocks(up: Up) -> None:
    """Last: these deployments replace those of `geofix up`."""
    text = (ROOT / "docs/flows.md").read_text().partition("## On a server of your own")[2]
    create, deploy, worker = re.findall(r"```\n(.*?)```", text, re.S)[0].splitlines()
    assert worker == "prefect worker start --pool geofix"  # that of `geofix up` is there
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "GEOFIX_"))}
    environment |= {"PREFECT_API_URL": up.state["api"], "PREFECT_API_AUTH_STRING": up.secret}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"

    def shell(line: str, **options: Any) -> subprocess.CompletedProcess[str]:
        own = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True, "check": False, "timeout": 600}
        return subprocess.run(["bash", "-c", line], **own, **options)  # type: ignore[call-overload, no-any-return]

    made = shell(f"{create} --overwrite")  # `geofix up` has made one
    assert made.returncode == 0, made.stderr
    for given, why in (("", "GEOFIX_LAKE and GEOFIX_PROFILE must be set"), ("lake", "give an absolute path")):
        lake = f"GEOFIX_LAKE={given} GEOFIX_PROFILE=offline " if given else ""
        refused = shell(f"{lake}prefect --no-prompt deploy --all")
        assert refused.returncode == 1 and why in refused.stderr.splitlines()[-1], refused.stderr
        assert "Traceback" not in refused.stderr + refused.stdout
    done = shell(deploy.replace("/data/lake", shlex.quote(up.lake.uri)))
    assert done.returncode == 0, done.stdout + done.stderr
    for name, entrypoint in (
        ("refresh/nightly", "flows.refresh.refresh"),
        ("maintain/weekly", "flows.maintain.maintain"),
    ):
        deployment = up.api.get(f"/deployments/name/{name}").json()
        assert (deployment["entrypoint"], deployment["pull_steps"]) == (entrypoint, [])
        assert deployment["parameters"]["options"] == {"lake": up.lake.uri, "profile": "offline"}
        assert set(deployment["tags"]) == {f"lake:{up.lake.uri}", "profile:offline"}
        assert [schedule["active"] for schedule in deployment["schedules"]] == [False]
        assert deployment["global_concurrency_limit"]["limit"] == 1
        assert deployment["concurrency_options"]["collision_strategy"] == "ENQUEUE"

    # The worker's environment has no OTHER_HOOK; its block does.
    canary = "http://127.0.0.1:9/canary-7d1c"
    [save] = re.findall(r"^python -c .*$", text, re.M)
    saved = shell(save.replace("mapillary-token", "other-hook"), input=f"{canary}\n")
    assert saved.returncode == 0, saved.stderr
    run = up.start("maintain/weekly", "notify.url_env=OTHER_HOOK", dry_run=True)
    up.wait(run, "Completed")
    told, deadline = "keys taken from Prefect's secret blocks: OTHER_HOOK", time.monotonic() + 60
    while told not in up.log(run) and time.monotonic() < deadline:  # lines are sent in batches, after the state
        time.sleep(0.5)
    assert told in up.log(run)
    shown = [up.api.get(f"/flow_runs/{run}").text, up.api.get("/deployments/name/maintain/weekly").text]
    assert not [text for text in (*shown, *up.log(run), up.worker_log()) if "canary-7d1c" in text]
