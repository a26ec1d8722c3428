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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from flows.deployment import deployment_tags
from flows.options import RunOptions
from flows.prefect_auth import CLIENT, lake_secret, read_secret, server_environment
from flows.servers import (
    OWN_MODULES,
    START_S,
    answers,
    free_port,
    is_free,
    listen_on,
    offline_command,
    socket_args,
    start_time,
    wait_until_healthy,
)
from schemas.errors import GeofixError
from tasks.lake import Lake
from tasks.lake.state import keep_private
from tasks.runtime.items.identity import code_version

ROOT = Path(__file__).resolve().parent.parent
POOL = "geofix"
PORT = 4200  # Prefect's own
SERVER, WORKER = "prefect-server", "prefect-worker"
STOP_S = 10.0  # after it a process that was asked to end is killed

logger = logging.getLogger("geofix.flows")


@dataclass
class UpState:
    """What `geofix up` has started, as it is written down in the lake's local state."""

    api: str
    processes: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> pid and start time
    deployments: dict[str, str] = field(default_factory=dict)  # name -> schedule

    def write(self, file: Path) -> None:
        fresh = file.with_suffix(".tmp")
        fresh.write_text(json.dumps(asdict(self)))
        fresh.replace(file)


def state_file(lake: Lake) -> Path:
    """Where the processes of `geofix up` are written down."""
    return lake.state / "up.json"


def read_state(lake: Lake) -> UpState | None:
    """What is written down there, if anything is; GeofixError if it cannot be read."""
    file = state_file(lake)
    try:
        state = UpState(**json.loads(file.read_text()))
        if all({"pid", "started"} <= process.keys() for process in state.processes.values()) and state.api:
            return state
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError):
        pass
    raise GeofixError(
        f"{file} is damaged or of another version, so no process is ended: end what it started yourself "
        "(ps shows `prefect` and `infra.offline`), then delete the file"
    )


def running_api(lake: Lake) -> str | None:
    """The address of the Prefect server that `geofix up` started for this lake, if it still answers."""
    with contextlib.suppress(GeofixError):
        state = read_state(lake)
        if state is not None and answers(f"{state.api}/health"):
            return state.api
    return None


def use_running_server(lake: Lake) -> str | None:
    """Make this process a client of the server that `geofix up` started for this lake, if it still answers.

    To be called before prefect is imported. A server that the environment names is kept; if it is this one, its
    secret is added.
    """
    api = running_api(lake)
    chosen = os.environ.setdefault("PREFECT_API_URL", api) if api else os.environ.get("PREFECT_API_URL")
    secret = read_secret(lake)
    if secret and chosen == api:
        os.environ[CLIENT] = secret
    return chosen


def resume_flow_runs(lake: Lake, snapshot: dict[str, Any]) -> list[str]:
    """Resume the flow runs that wait for the decision about this snapshot; returns their names.

    They are asked for on the Prefect server that is configured, or else on the one of `geofix up`. The decision is in
    the lake already, so a server that cannot be reached is only reported.
    """
    api = use_running_server(lake)
    if api is None:
        return []
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    import httpx

    from flows.decision import resume_waiting

    try:
        return resume_waiting(lake, snapshot)
    except httpx.HTTPError as error:
        logger.warning("the Prefect server at %s was not asked for waiting flow runs: %s", api, type(error).__name__)
        return []


def up(options: RunOptions, lake: Lake, port: int | None = None) -> dict[str, Any]:
    """Start everything that is not running yet; returns addresses, processes and deployments.

    The Prefect server listens on this port, else on 4200, or where that is taken on any.

    Every deployment is given these options, so a flow run resolves the same settings as the command did.
    """
    if not (ROOT / "prefect.yaml").exists():
        raise GeofixError(f"there is no prefect.yaml in {ROOT}: `geofix up` runs from a checkout of geofix")
    state = read_state(lake)
    if state is None or not _serves(state, lake):
        _start(options, lake, port)
        keep_private(lake.state)
        state = read_state(lake)
    elif port is not None and f":{port}/" not in state.api:
        raise GeofixError(f"the Prefect server of this lake runs at {state.api} already; `geofix down` ends it")
    assert state is not None
    return asdict(state)


def _serves(state: UpState, lake: Lake) -> bool:
    """Whether the server answers. Of one that is gone, the worker and the offline world are ended: new ones follow."""
    server, health = state.processes.get(SERVER), f"{state.api}/health"
    if answers(health):
        return True
    if server is not None and start_time(int(server["pid"])) == server["started"] and answers(health, START_S):
        return True  # it was busy
    stopped, _ = down(lake)
    if stopped:
        logger.warning("the Prefect server of an earlier `up` is gone; ended what it left: %s", ", ".join(stopped))
    return False


def down(lake: Lake) -> tuple[list[str], list[str]]:
    """Stop what `up` started; the names of what was stopped, and of what was not running any more."""
    state = read_state(lake)
    if state is None:
        return [], []
    stopped = {
        name: stop_process(int(process["pid"]), process["started"])
        for name, process in reversed(list(state.processes.items()))
    }
    state_file(lake).unlink()
    return [name for name in state.processes if stopped[name]], [name for name in stopped if not stopped[name]]


def deployed_options(options: RunOptions, lake: Lake) -> dict[str, Any]:
    """The options as a deployment's parameters: paths are absolute, as a worker runs in another folder."""
    config = options.resolve()
    deployed = {
        "recipe": config.recipe,
        "profile": config.profile,
        "config": str(Path(options.config).resolve()) if options.config else None,
        "lake": lake.uri,
        "overrides": options.overrides,
        "snapshot": options.snapshot,
    }
    return {name: value for name, value in deployed.items() if value}


def _start(options: RunOptions, lake: Lake, port: int | None = None) -> None:
    config = options.resolve()
    if port is not None and not is_free(port):
        raise GeofixError(f"--port {port}: another process listens there; choose another")
    port = port or (PORT if is_free(PORT) else free_port())
    folder = state_file(lake).parent
    (folder / "prefect").mkdir(parents=True, exist_ok=True)
    api = f"http://127.0.0.1:{port}/api"
    environment = {
        **os.environ,
        **OWN_MODULES,
        **server_environment(lake_secret(lake), port),
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_API_URL": api,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_WORKER_QUERY_SECONDS": "2",  # a run that was started or resumed begins soon
    }
    prefect = [sys.executable, "-m", "prefect"]
    state = UpState(api)

    def launch(name: str, command: list[str], listen_socket: socket.socket | None = None) -> subprocess.Popen[bytes]:
        with (folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command + socket_args(listen_socket),
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                umask=-1 if name == WORKER else 0o077,  # what runs write into the lake is as the user's umask says
                pass_fds=[listen_socket.fileno()] if listen_socket else [],
            )
        state.processes[name] = {"pid": process.pid, "started": start_time(process.pid)}
        # Written after each start: `down` must find whatever was started, also when a later step fails.
        state.write(state_file(lake))
        return process

    server = launch(SERVER, [*prefect, "server", "start", "--host", "127.0.0.1", "--port", str(port)])
    with _prefect_commands(environment) as run_prefect:
        wait_until_healthy(server, f"{api}/health", folder / "prefect-server.log", "the Prefect server")
        state.deployments, deploy = _deployments(folder, deployed_options(options, lake))
        run_prefect(["work-pool", "create", POOL, "--type", "process", "--overwrite"], deploy)
    _refuse_unknown_parameters(api, lake_secret(lake), state.deployments)
    if config.offline.serve and is_free(config.offline.port):
        with listen_on(config.offline.port) as listen_socket:  # or a run that begins now could take it meanwhile
            launch("offline-world", offline_command(config.offline, config.offline.port), listen_socket)
    launch(WORKER, [*prefect, "worker", "start", "--pool", POOL, "--type", "process"])


def _deployments(folder: Path, options: dict[str, Any]) -> tuple[dict[str, str], list[str]]:
    """The schedules of each deployment of prefect.yaml by name, and the command that deploys with these options."""
    project = yaml.safe_load((ROOT / "prefect.yaml").read_text())
    del project["build"]  # values from GEOFIX_* variables; here they come from the command
    schedules = {}
    for deployment in project["deployments"]:
        tags = deployment_tags(options["lake"], options["profile"])
        deployment |= {"parameters": {"options": options}, "version": code_version(), "tags": tags}
        flow = deployment["entrypoint"].rpartition(".")[2]
        planned = deployment.get("schedules", [])
        for schedule in planned:
            schedule["active"] = True
        crons = [f"cron {s['cron']} {s.get('timezone', 'UTC')}" for s in planned]
        schedules[f"{flow}/{deployment['name']}"] = ", ".join(crons) or "by hand"
    own = folder / "prefect.yaml"
    own.write_text(yaml.safe_dump(project, sort_keys=False))
    return schedules, ["--no-prompt", "deploy", "--all", "--prefect-file", str(own)]


@contextlib.contextmanager
def _prefect_commands(environment: dict[str, str]) -> Iterator[Callable[..., None]]:
    """A process that loads Prefect at once, and a function that has it run commands and raises where one fails."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.prefect_commands"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    def run(*commands: list[str]) -> None:
        output, _ = process.communicate(json.dumps(commands))
        if process.returncode:
            last = "".join(output.strip().splitlines()[-1:])
            raise GeofixError(f"Prefect's {' or '.join(' '.join(c[:2]) for c in commands)} failed: {last[:300]}")

    with process:
        try:
            yield run
        finally:
            process.kill()


def _refuse_unknown_parameters(api: str, secret: str, deployments: Iterable[str]) -> None:
    """Let the server refuse a flow run with an unknown parameter; Prefect would start it, and it would crash."""
    import httpx

    user, _, password = secret.partition(":")
    with httpx.Client(base_url=api, auth=(user, password), trust_env=False, timeout=60) as client:

        def ask(method: str, path: str, body: Any = None) -> Any:
            end_s = time.monotonic() + START_S
            while (response := client.request(method, path, json=body)).status_code == 503 and time.monotonic() < end_s:
                time.sleep(0.5)  # its database is busy
            return response.raise_for_status()

        for name in deployments:
            deployment = ask("GET", f"/deployments/name/{name}").json()
            schema = {**deployment["parameter_openapi_schema"], "additionalProperties": False}
            ask("PATCH", f"/deployments/{deployment['id']}", {"parameter_openapi_schema": schema})


def stop_process(pid: int, started: str | None) -> bool:
    """End a process that leads a group, and the group; false if the process of that id is not the one meant."""
    if started is None or start_time(pid) != started:
        return False
    members = {member: start_time(member) for member in _group_members(pid)}
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGTERM)
    end_s = time.monotonic() + STOP_S
    while alive := [member for member, began in members.items() if began is not None and start_time(member) == began]:
        if time.monotonic() > end_s:
            for one in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
        time.sleep(0.1)
    return True


def _group_members(group: int) -> list[int]:
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.getpgid(int(entry.name)) == group:
                    members.append(int(entry.name))
    return members
