"""An offline world of a benchmark's own, in a process of its own."""

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

START_S = 300.0
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class OfflineServer:
    """A world that is running."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, method: str = "GET", body: Any = None) -> Any:
        """JSON from one of its control addresses."""
        data = None if body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"}  # the only one that its control addresses take
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=kind)
        with _direct.open(request, timeout=60) as answer:
            return json.load(answer)

    def latency(self, seconds: float) -> None:
        """Make every answer take so much longer."""
        rule = {"service": "*", "kind": "latency", "rate": 1.0, "seconds": seconds}
        self.ask("/control/faults", "POST", {"rules": [rule] if seconds else []})


@contextlib.contextmanager
def offline_server(*options: str, shared: bool = False, port: int = 0) -> Iterator[OfflineServer]:
    """The world with these options, until the block ends; a shared one is used by commands, which start none then."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was killed leaves the port waiting
        probe.bind(("127.0.0.1", port))  # 0: any that is free
        port = probe.getsockname()[1]
    ending = [] if shared else ["--lifeline"]
    command = [sys.executable, "-m", "infra.offline", "--port", str(port), *ending, *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    server = OfflineServer(f"http://127.0.0.1:{port}")
    try:
        wait_for_world(server, process)
        yield server
    finally:
        process.terminate()
        process.wait(30)


def wait_for_world(server: OfflineServer, process: "subprocess.Popen[bytes]") -> None:
    """Return when the world answers."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"the offline world ended with {process.returncode} before it answered")
        try:
            server.ask("/health")
            return
        except urllib.error.URLError:
            time.sleep(0.2)
    raise SystemExit(f"the offline world did not answer within {START_S:.0f} s")
