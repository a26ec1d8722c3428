"""Where Ray's workers import from, and that they end with the command however it ends."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.runtime.on_ray.watchdog import processes_of

pytestmark = pytest.mark.whole

# A stage with workers, as a user's own program would run it. Its last item never ends.
PROGRAM = """
import sys, time
import polars as pl
from ray import cloudpickle
from schemas.settings.spread import SpreadSettings
from tasks.runtime.on_ray.pool import spread
from tasks.runtime.stage import Resources

cloudpickle.register_pickle_by_value(sys.modules["__main__"])

def make():
    import schemas.tables, tasks.lake, flows.order

    def call(chunk):
        while chunk["id"][0] == "endless":
            time.sleep(0.1)
        return chunk["id"][0]

    return call

items = pl.DataFrame({"id": sys.argv[1:]})
for result in spread(items, make, SpreadSettings(), Resources(workers=2, chunk=1)):
    print(result, flush=True)
"""


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def ray_folder(pid: int) -> str:
    import tempfile

    return f"{tempfile.gettempdir()}/geofix-ray-{os.getuid()}/{pid}"


@contextlib.contextmanager
def started(program: Path, *items: str) -> Iterator[subprocess.Popen[str]]:
    """The program in its own folder, once its first item is done."""
    command = [sys.executable, "-P", str(program), *items]
    with subprocess.Popen(command, cwd=program.parent, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "quick\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    for name in ("tasks", "flows", "schemas", "infra"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('the {name}.py of the user was imported')\n")
    (tmp_path / "own_program.py").write_text(PROGRAM)
    return tmp_path / "own_program.py"


def gone_within_s(folder: str, seconds: float) -> float:
    start_s = time.monotonic()
    while processes_of(folder):
        assert time.monotonic() - start_s < seconds, f"still running: {processes_of(folder)}"
        time.sleep(0.1)
    return time.monotonic() - start_s


def test_modules_of_the_user_hide_none_of_ours_and_a_killed_command_leaves_no_process(program: Path) -> None:
    with started(program, "quick", "endless", "endless") as process:
        folder = ray_folder(process.pid)
        assert len(processes_of(folder)) > 5, "servers, agents and workers of Ray"
        process.send_signal(signal.SIGKILL)
        process.wait()
        gone_within_s(folder, 10)
