"""A Prefect server of a benchmark's own, for many commands: a start costs more than the work of a small stage."""

import os
import subprocess
import sys
import time
from pathlib import Path

from flows.prefect_auth import new_secret, server_environment
from flows.servers import answers, free_port

START_S = 300.0


class PrefectApi:
    """A server that can be stopped and started again, at the same address and with the same database."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        api = f"http://127.0.0.1:{port}/api"
        self.variables = {  # with which commands reach it
            **server_environment(new_secret(), port),
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_API_URL": api,
        }
        self._command = [sys.executable, "-m", "infra.prefect_server", "--port", str(port), "--lifeline"]
        self._health, self._log = f"{api}/health", folder / "prefect.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, env={**os.environ, **self.variables}, stdin=subprocess.PIPE, stdout=output, stderr=output
            )
        until = time.monotonic() + START_S
        while not answers(self._health):
            if self._process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the Prefect server did not start; its log is {self._log}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End it, as a machine does that goes down."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
