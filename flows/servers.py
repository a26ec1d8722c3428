"""Servers that a command starts on loopback: the offline world, a trained model, a Prefect server."""

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from flows.display import display
from schemas.config import Config
from schemas.errors import GeofixError
from schemas.extras import missing_modules, require_extras
from schemas.settings.offline import OfflineSettings
from schemas.settings.services import OFFLINE_URL

START_S = 180.0  # long enough for a machine with many times its load
SAY_EVERY_S = 30.0
OWN_MODULES = {"PYTHONSAFEPATH": "1"}  # `python -m` must not import a user's tasks.py from the working directory
PANO_WIDTH = 4096  # of the offline world's panoramas, unless it is told otherwise

logger = logging.getLogger("geofix.servers")


class Server:
    """A server process that starts when it is first needed and ends with this process, also when that is killed.

    `listen_socket` is what it serves on (see `listen_on`). Without one it opens its port itself, which another process
    may have taken by then.
    """

    def __init__(
        self,
        command: list[str],
        health_url: str,
        log: Path,
        listen_socket: socket.socket | None = None,
        name: str = "a server",
    ) -> None:
        self._command, self._health_url, self._log = [*command, "--lifeline"], health_url, log
        self._listen_socket, self._name = listen_socket, name
        self._process: subprocess.Popen[bytes] | None = None
        self._answered = False

    def begin(self) -> None:
        """Start it, unless it was, without waiting for it."""
        if self._process is None:
            display.get().phase(f"starting {self._name}")
            self._start()

    def _start(self) -> None:
        self._log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._log.touch(0o600)
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command + socket_args(self._listen_socket),
                pass_fds=[self._listen_socket.fileno()] if self._listen_socket else [],
                env={**os.environ, **OWN_MODULES},
                stdin=subprocess.PIPE,  # closes when this process ends in any way; the server ends then
                stdout=output,
                stderr=output,
                umask=0o077,  # Prefect's database holds secrets
                start_new_session=True,  # Ctrl-C goes to this process only: the server stops when the work is saved
            )
        self._close_socket()  # only the server holds it now: when it ends, connections are refused at once

    def ensure(self) -> None:
        """Start it, unless it was, and wait until it answers."""
        self.begin()
        if not self._answered and self._process is not None:
            wait_until_healthy(self._process, self._health_url, self._log, self._name)
            self._answered = True

    def stop(self) -> None:
        self._close_socket()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _close_socket(self) -> None:
        if self._listen_socket is not None:
            self._listen_socket.close()


# The world that several flows of one command use: its settings, its port, and what to call before it is first queried.
_held_world: ContextVar[tuple[OfflineSettings, int, Callable[[], None]] | None] = ContextVar("held", default=None)


@contextlib.contextmanager
def offline_world(config: Config, log: Path, early: bool = False) -> Iterator[tuple[Config, Callable[[], None]]]:
    """The configuration with the offline world's real port, and what to call before it is first queried.

    One that is wanted `early` begins at once, while the command that will need it does other things.
    """
    held = _held_world.get()
    if not config.offline.serve:
        yield config, lambda: None
    elif held is not None and held[0] == config.offline:
        yield _at_port(config, held[1]), held[2]
    else:
        with _world(config.offline, log, early) as (port, ready):
            yield _at_port(config, port), ready


@contextlib.contextmanager
def held_offline_world(wanted: OfflineSettings, log: Path) -> Iterator[None]:
    """One offline world for all flows that run inside; each would start its own, which takes seconds."""
    if not wanted.serve:
        yield
        return
    with _world(wanted, log) as (port, ready):
        token = _held_world.set((wanted, port, ready))
        try:
            yield
        finally:
            _held_world.reset(token)


@contextlib.contextmanager
def _world(wanted: OfflineSettings, log: Path, early: bool = False) -> Iterator[tuple[int, Callable[[], None]]]:
    """(port, what to call before it is first queried) of a world that runs already, or of one that ends with this."""
    if _is_the_wanted_one(_health(wanted.port), wanted):
        yield wanted.port, lambda: None
        return
    # The port is taken now, although the server starts only when it is needed: two commands at once would choose the
    # same one, and the second would use the first one's world until that command ends.
    listen_socket = listen_on(wanted.port, 0)
    port = listen_socket.getsockname()[1]
    server = Server(
        offline_command(wanted, port), f"http://127.0.0.1:{port}/health", log, listen_socket, "the offline world"
    )
    if early:
        server.begin()
        # Connections wait until it serves. A question to its models makes it build what searches need.
        question = f"http://127.0.0.1:{port}/openai/v1/models"
        threading.Thread(target=answers, args=(question, START_S), daemon=True).start()
    try:
        yield port, server.ensure
    finally:
        server.stop()


def check_offline_world(wanted: OfflineSettings) -> None:
    """MissingExtra if the offline world is to be served here, does not run yet and is not installed."""
    if wanted.serve and missing_modules("offline") and not _is_the_wanted_one(_health(wanted.port), wanted):
        require_extras("the offline world (profile offline)", "offline")


def _is_the_wanted_one(health: dict[str, Any] | None, wanted: OfflineSettings) -> bool:
    """Whether a running world can be used: the same seed and size, and not one that ends with another command."""
    if health is None or health.get("passing", True):
        return False
    if (health.get("seed"), health.get("size")) != (wanted.seed, wanted.size):
        return False
    odd = []
    if health.get("faults"):
        odd.append(f"{health['faults']} fault rules")
    if health.get("pano_width") != PANO_WIDTH:
        odd.append(f"panoramas {health.get('pano_width')} wide")
    if odd:  # allowed, but the results should not be the first to show it
        logger.warning("using the offline world that runs at port %d, with %s", wanted.port, " and ".join(odd))
    return True


def listen_on(*ports: int) -> socket.socket:
    """A loopback socket that listens on the first of these ports that is free; 0 is any.

    Connections wait until the socket is handed to a `Server` or closed.
    """
    for port in ports:
        listen_socket = socket.socket()
        listen_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listen_socket.bind(("127.0.0.1", port))
            listen_socket.listen(2048)
        except OSError:
            listen_socket.close()
        else:
            return listen_socket
    raise GeofixError(f"another process listens on port {', '.join(map(str, ports))} of this machine")


def socket_args(listen_socket: socket.socket | None) -> list[str]:
    """The options with which one of our servers serves on an open socket, which it must inherit."""
    return ["--listening-fd", str(listen_socket.fileno())] if listen_socket else []


def free_port() -> int:
    """A loopback port that is free now."""
    with listen_on(0) as probe:
        return int(probe.getsockname()[1])


def offline_command(settings: OfflineSettings, port: int) -> list[str]:
    """The command that serves the offline world."""
    require_extras("the offline world", "offline")
    options = ["--port", str(port), "--seed", str(settings.seed), "--size", str(settings.size)]
    if settings.processes > 1:
        options += ["--processes", str(settings.processes)]
    return [sys.executable, "-m", "infra.offline", *options]


def wait_until_healthy(process: subprocess.Popen[bytes], url: str, log: Path, name: str = "a server") -> None:
    """Return when the server answers; GeofixError, with its log, if it ends or does not answer in time."""
    begin = reported_s = time.monotonic()
    while (now := time.monotonic()) < begin + START_S:
        if process.poll() is not None:
            from tasks.lake.writes import is_full

            if is_full(str(log.parent)):
                raise GeofixError(
                    f"{name} did not start: no space left on the disk of {log.parent}; free some and run again"
                )
            raise GeofixError(f"{name} did not start (exit code {process.returncode}); its log is {log}")
        if answers(url) and process.poll() is None:
            return
        if now - reported_s >= SAY_EVERY_S:
            reported_s = now
            logger.warning("waiting for %s at %s for %.0f s now; its log is %s", name, url, now - begin, log)
        time.sleep(0.1)
    raise GeofixError(
        f"{name} did not answer at {url} within {START_S:.0f} s ({os.getloadavg()[0]:.0f} processes want "
        f"{os.cpu_count() or 1} cores): run again when the machine is less busy; its log is {log}"
    )


def _health(port: int) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError):
        health = json.loads(_get(f"http://127.0.0.1:{port}/health") or b"null")
        if isinstance(health, dict) and health.get("service") == "geofix-offline":
            return health
    return None


def answers(url: str, timeout_s: float = 2.0) -> bool:
    """Whether a server on loopback answers there with success."""
    return _get(url, timeout_s) is not None


def _get(url: str, timeout_s: float = 2.0) -> bytes | None:
    # A proxy in the environment must not be used for loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with contextlib.suppress(OSError), opener.open(url, timeout=timeout_s) as answer:
        return bytes(answer.read(10_000)) if answer.status == 200 else None
    return None


def start_time(pid: int) -> str | None:
    """What tells a process from a later one with the same id: the boot and the moment of its start; None if it ended.

    Also None where there is no /proc.
    """
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    return None if state == "Z" else f"{boot} {fields[18]}"


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port."""
    try:
        listen_on(port).close()
    except GeofixError:
        return False
    return True


def _at_port(config: Config, port: int) -> Config:
    """The same configuration, with every address of the offline world at `port`."""
    here = f"http://127.0.0.1:{port}"
    services = config.services
    changed = {}
    for name in type(services).model_fields:
        endpoint = getattr(services, name)
        moved = {
            field: here + url.removeprefix(OFFLINE_URL)
            for field in getattr(type(endpoint), "model_fields", ())
            if isinstance(url := getattr(endpoint, field), str) and url.startswith(OFFLINE_URL)
        }
        if moved:
            changed[name] = endpoint.model_copy(update=moved)
    endpoints = {
        name: endpoint.model_copy(update={"base_url": here + endpoint.base_url.removeprefix(OFFLINE_URL)})
        for name, endpoint in config.models.endpoints.items()
        if endpoint.base_url.startswith(OFFLINE_URL)
    }
    models = config.models.model_copy(update={"endpoints": {**config.models.endpoints, **endpoints}})
    return config.model_copy(update={"services": services.model_copy(update=changed), "models": models})
