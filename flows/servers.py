"""Servers a command starts beside itself on loopback: the offline world, and a trained model."""

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from schemas.config import Config
from schemas.settings.offline import OfflineSettings
from schemas.settings.services import OFFLINE_URL
from tasks.errors import GeofixError

START_S = 60.0


@contextlib.contextmanager
def offline_world(config: Config, log: Path) -> Iterator[Config]:
    """The configuration with its services reachable: starts the offline world if asked and none answers."""
    if not config.offline.serve:
        yield config
        return
    wanted = config.offline
    running = _health(wanted.port)
    if running and (running.get("seed"), running.get("size")) == (wanted.seed, wanted.size):
        yield _at_port(config, wanted.port)
        return
    port = wanted.port if is_free(wanted.port) else free_port()
    with server([*offline_command(wanted, port), "--lifeline"], f"http://127.0.0.1:{port}/health", log):
        yield _at_port(config, port)


@contextlib.contextmanager
def server(command: list[str], health_url: str, log: Path) -> Iterator[None]:
    """A server that answers at `health_url` while the block runs. It ends with us, also when we are killed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C in the terminal is for us: we stop the server when our work is saved
        )
    try:
        _wait_until_healthy(process, health_url, log)
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


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
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise GeofixError(f"a server did not start (exit code {process.returncode}); its log is {log}")
        if _get_json(url) is not None:
            return
        time.sleep(0.1)
    raise GeofixError(f"a server did not answer at {url} within {START_S:.0f} s; its log is {log}")


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
        url = getattr(endpoint, "base_url", None)
        if isinstance(url, str) and url.startswith(OFFLINE_URL):
            changed[name] = endpoint.model_copy(update={"base_url": here + url.removeprefix(OFFLINE_URL)})
    return config.model_copy(update={"services": services.model_copy(update=changed)})
