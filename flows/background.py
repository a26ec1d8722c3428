"""`geofix up` and `geofix down`: Prefect server, worker, schedules and the offline world, in the background."""

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import yaml

from flows.options import RunOptions
from flows.servers import OWN_MODULES, answers, free_port, is_free, listening, offline_command, through
from schemas.errors import GeofixError
from tasks.lake import Lake

ROOT = Path(__file__).resolve().parent.parent
POOL = "geofix"
START_S = 180.0

logger = logging.getLogger("geofix.flows")


def state_file(lake: Lake) -> Path:
    """Where the processes of `geofix up` are written down."""
    return lake.state / "up.json"


def running_api(lake: Lake) -> str | None:
    """The address of the Prefect server that `geofix up` started for this lake, if it still answers."""
    with contextlib.suppress(OSError, ValueError):
        url = str(json.loads(state_file(lake).read_text())["api"])
        if answers(f"{url}/health"):
            return url
    return None


def resume_flow_runs(lake: Lake, snapshot: dict[str, Any]) -> list[str]:
    """Resume the flow runs that wait for the decision about this snapshot; returns their names.

    They are asked for on the Prefect server that is configured, or else on the one of `geofix up`. The decision is in
    the lake already, so a server that cannot be reached is only reported.
    """
    api = os.environ.get("PREFECT_API_URL") or running_api(lake)
    if api is None:
        return []
    os.environ["PREFECT_API_URL"] = api  # before prefect is imported
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    from flows.decision import resume_waiting

    try:
        return resume_waiting(lake, snapshot)
    except httpx.HTTPError as error:
        logger.warning("the Prefect server at %s was not asked for waiting flow runs: %s", api, type(error).__name__)
        return []


def up(options: RunOptions, lake: Lake) -> dict[str, Any]:
    """Start everything that is not running yet; returns addresses, processes and deployments.

    Every deployment is given these options, so a flow run resolves the same settings as the command did.
    """
    if not (ROOT / "prefect.yaml").exists():
        raise GeofixError(f"there is no prefect.yaml in {ROOT}: `geofix up` runs from a checkout of geofix")
    if running_api(lake) is None:
        _start(options, lake)
    state: dict[str, Any] = json.loads(state_file(lake).read_text())
    return state


def down(lake: Lake) -> list[str]:
    """Stop what `up` started; returns the names of what was stopped."""
    file = state_file(lake)
    if not file.exists():
        return []
    state = json.loads(file.read_text())
    for pid in reversed(list(state["processes"].values())):
        _stop(pid)
    file.unlink()
    return list(state["processes"])


def deployed_options(options: RunOptions, lake: Lake) -> dict[str, Any]:
    """The options as a deployment's parameters: paths are absolute, as a worker runs in another folder."""
    config = options.resolve()
    given = {
        "recipe": config.recipe,
        "profile": config.profile,
        "config": str(Path(options.config).resolve()) if options.config else None,
        "lake": lake.uri,
        "overrides": options.overrides,
        "snapshot": options.snapshot,
    }
    return {name: value for name, value in given.items() if value}


def _start(options: RunOptions, lake: Lake) -> None:
    config = options.resolve()
    folder = state_file(lake).parent
    (folder / "prefect").mkdir(parents=True, exist_ok=True)
    port = 4200 if is_free(4200) else free_port()
    api = f"http://127.0.0.1:{port}/api"
    environment = {
        **os.environ,
        **OWN_MODULES,
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_API_URL": api,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_WORKER_QUERY_SECONDS": "2",  # a run that was started or resumed begins soon
    }
    prefect = [sys.executable, "-m", "prefect"]
    state: dict[str, Any] = {"api": api, "processes": {}, "deployments": {}}

    def launch(name: str, command: list[str], door: socket.socket | None = None) -> subprocess.Popen[bytes]:
        with (folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command + through(door), cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, pass_fds=[door.fileno()] if door else [],
            )  # fmt: skip
        state["processes"][name] = process.pid
        # Written after each start: `down` must find whatever was started, also when a later step fails.
        file = state_file(lake)
        file.with_suffix(".tmp").write_text(json.dumps(state))
        file.with_suffix(".tmp").replace(file)
        return process

    server = launch("prefect-server", [*prefect, "server", "start", "--host", "127.0.0.1", "--port", str(port)])
    _wait_for(f"{api}/health", server, folder / "prefect-server.log")
    _say([*prefect, "work-pool", "create", POOL, "--type", "process", "--overwrite"], environment)
    state["deployments"] = _deploy(folder, prefect, environment, deployed_options(options, lake))
    if config.offline.serve and is_free(config.offline.port):
        with listening(config.offline.port) as door:  # or a run that begins now could take it meanwhile
            launch("offline-world", offline_command(config.offline, config.offline.port), door)
    launch("prefect-worker", [*prefect, "worker", "start", "--pool", POOL, "--type", "process"])


def _deploy(folder: Path, prefect: list[str], environment: dict[str, str], options: dict[str, Any]) -> dict[str, str]:
    """Every deployment of prefect.yaml with these options; returns their schedules by name."""
    project = yaml.safe_load((ROOT / "prefect.yaml").read_text())
    schedules = {}
    for deployment in project["deployments"]:
        deployment["parameters"] = {**deployment.get("parameters", {}), "options": options}
        flow = deployment["entrypoint"].partition(":")[2]
        crons = [f"cron {s['cron']} {s.get('timezone', 'UTC')}" for s in deployment.get("schedules", [])]
        schedules[f"{flow}/{deployment['name']}"] = ", ".join(crons) or "by hand"
    own = folder / "prefect.yaml"
    own.write_text(yaml.safe_dump(project, sort_keys=False))
    # All at once: the start of Prefect's command takes longer than what it does.
    _say([*prefect, "--no-prompt", "deploy", "--all", "--prefect-file", str(own)], environment)
    return schedules


def _say(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise GeofixError(f"`{' '.join(command[2:5])}` failed: {''.join(last)[:300]}")


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if server.poll() is not None:
            raise GeofixError(f"the Prefect server did not start (exit code {server.returncode}); its log is {log}")
        if answers(url):
            return
        time.sleep(0.3)
    raise GeofixError(f"the Prefect server did not answer within {START_S:.0f} s; its log is {log}")


def _stop(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGTERM)
        for _ in range(100):
            os.killpg(pid, 0)
            time.sleep(0.1)
        os.killpg(pid, signal.SIGKILL)
