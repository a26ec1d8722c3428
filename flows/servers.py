"""Servers a command starts beside itself on loopback: the offline world, and a trained model."""

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from schemas.config import Config
from schemas.settings.offline import OfflineSettings
from schemas.settings.services import OFFLINE_URL
from tasks.errors import GeofixError

START_S = 180.0  # a busy machine takes its time
SAY_EVERY_S = 30.0

logger = logging.getLogger("geofix.servers")


class Server:
    """A server that is started when it is first needed and ends with us, also when we are killed."""

    def __init__(self, command: list[str], health_url: str, log: Path) -> None:
        self._command, self._health_url, self._log = [*command, "--lifeline"], health_url, log
        self._process: subprocess.Popen[bytes] | None = None

    def ensure(self) -> None:
        """Start it, unless it was, and wait until it answers."""
        if self._process is not None:
            return
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,  # its lifeline: closes when we end, however we end
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in the terminal is for us: the server stops when our work is saved
            )
        _wait_until_healthy(self._process, self._health_url, self._log)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def offline_world(config: Config, log: Path) -> Iterator[tuple[Config, Callable[[], None]]]:
    """The configuration with the offline world's real port, and what to call before it is first asked."""
    wanted = config.offline
    running = _health(wanted.port) if wanted.serve else None
    if not wanted.serve:
        yield config, lambda: None
    elif running and (running.get("seed"), running.get("size")) == (wanted.seed, wanted.size):
        yield _at_port(config, wanted.port), lambda: None
    else:
        port = wanted.port if is_free(wanted.port) else free_port()
        server = Server(offline_command(wanted, port), f"http://127.0.0.1:{port}/health", log)
        try:
            yield _at_port(config, port), server.ensure
        finally:
            server.stop()


def free_port() -> int:
    """A loopback port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def offline_command(settings: OfflineSettings, port: int) -> list[str]:
    """The command that serves the offline world."""
    options = ["--port", str(port), "--seed", str(settings.seed), "--size", str(settings.size)]
    return [sys.executable, "-m", "infra.offline", *options]


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    begin = said = time.monotonic()
    while (now := time.monotonic()) < begin + START_S:
        if process.poll() is not None:
            raise GeofixError(f"a server did not start (exit code {process.returncode}); its log is {log}")
        if answers(url):
            return
        if now - said >= SAY_EVERY_S:
            said = now
            logger.warning("waiting for a server at %s for %.0f s now; its log is %s", url, now - begin, log)
        time.sleep(0.1)
    raise GeofixError(
        f"a server did not answer at {url} within {START_S:.0f} s ({os.getloadavg()[0]:.0f} processes want "
        f"{os.cpu_count() or 1} cores): run again when the machine is less busy; its log is {log}"
    )


def _health(port: int) -> dict[str, Any] | None:
    found = _get_json(f"http://127.0.0.1:{port}/health")
    return found if found and found.get("service") == "geofix-offline" else None


def answers(url: str) -> bool:
    """Whether a server on loopback answers there with success."""
    try:
        with _opener().open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _opener() -> urllib.request.OpenerDirector:
    # A proxy in the environment must not come between us and loopback.
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _get_json(url: str) -> dict[str, Any] | None:
    try:
        with _opener().open(url, timeout=2) as answer:
            found = json.loads(answer.read(10_000))
    except (urllib.error.URLError, OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
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
    return config.model_copy(update={"services": services.model_copy(update=changed)})
