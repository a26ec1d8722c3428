"""SIGTERM, SIGINT and SIGHUP end a command alike: what is finished is saved, and the exit code tells which it was."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.servers import free_port, wait_until_healthy
from tasks.lake import Lake

pytestmark = pytest.mark.whole

# A flow as the commands run it, with a stage whose second item never ends.
PROGRAM = """
import functools, os, sys, time
from pathlib import Path

import polars as pl
from ray import cloudpickle
from flows.cli.command import Call, run_command
from flows.cli.running import prefect_ready
from flows.display import Display
from schemas.settings.base import Settings
from schemas.settings.services import ServicesSettings
from tasks.lake import Lake
from tasks.runtime.runner import Context, Kept, Resources, Stage, run
from tasks.services import connect

cloudpickle.register_pickle_by_value(sys.modules["__main__"])
lake = Lake(sys.argv[1])

class Nothing(Settings): ...

def items(inputs, settings):
    return pl.DataFrame({"id": ["quick", "endless"]})

def work(item, context):
    while item["id"] == "endless":
        time.sleep(0.1)
    return Kept({"places": [{"place_id": "quick", "country": "FR", "lat": 1.0, "lon": 2.0, "split": "train"}]})

STAGE = Stage("stay", (), ("places",), items, work, lambda s, w: None, resources=Resources(workers=2, chunk=1))

def action():
    say = functools.partial(print, file=sys.stdout, flush=True)  # the result's, before it is kept for that alone
    with prefect_ready(lake, Display()):
        from prefect import flow, task
        from flows.recording import run_flow, run_task

        progress = lambda tick: say("done" if tick.done else "begun")
        context = Context(lake, connect(ServicesSettings(), {}), progress=progress)
        stay = task(lambda _: run(STAGE, Nothing(), context), name="stay")
        run_flow(flow(lambda: run_task(stay, None), name="stay"))
    return 0

run_command(Call(), action)
"""


def ignoring_sigint() -> None:
    """As a shell starts what is to run in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.fixture(autouse=True)
def hangup_is_heard() -> Iterator[None]:
    """SIGHUP as it is without nohup, which has it ignored: children inherit that, and would never end by it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def start(lake: Path, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(lake)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, text=True, stdout=pipe, stderr=pipe, preexec_fn=ignoring_sigint, env={**os.environ, **environment}
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture(params=[False, True], ids=["plain", "recorded"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a command: without a Prefect server, and with one."""
    if not request.param:
        yield {}
        return
    port = free_port()
    variables = {"PREFECT_API_URL": f"http://127.0.0.1:{port}/api", "PREFECT_HOME": str(tmp_path / "prefect")}
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=log, stderr=log)
    try:
        wait_until_healthy(process, f"{variables['PREFECT_API_URL']}/health", tmp_path / "server.log")
        yield variables
    finally:
        process.terminate()
        process.wait(60)


def test_a_signal_ends_a_flow_with_what_is_finished_saved(tmp_path: Path, server: dict[str, str]) -> None:
    running = {one: start(tmp_path / one.name, **server) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        for number, code in ((signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGTERM, 143)):
            process = running[number]
            while said(process) not in ("done", ""):
                pass
            time.sleep(0.5)  # it waits for Ray now
            process.send_signal(number)
            _, words = process.communicate(timeout=600)
            assert "interrupted: finished work is saved" in words and "bug" not in words and "Traceback" not in words
            assert process.returncode == code
            lake = Lake(tmp_path / number.name)
            assert lake.read("places")["place_id"].to_list() == ["quick"]
            assert lake.read("runs")["status"].to_list() == ["interrupted"]
    finally:
        for process in running.values():
            process.kill()


NOHUP = """
import signal
from flows.cli.command import Call, run_command

def action():
    signal.raise_signal(signal.SIGHUP)
    return 3

run_command(Call(), action)
"""


def test_a_command_under_nohup_goes_on() -> None:
    ignoring = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731 - as nohup does
    assert subprocess.run([sys.executable, "-c", NOHUP], preexec_fn=ignoring, check=False, timeout=300).returncode == 3
    assert subprocess.run([sys.executable, "-c", NOHUP], check=False, timeout=300).returncode == 129


def test_a_signal_to_a_command_that_is_done_is_not_heard() -> None:
    program = """
import atexit, os, signal, sys
from flows.cli.command import Call, run_command

def farewell():
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))

atexit.register(farewell)  # as Ray's
run_command(Call(), lambda: 3)
"""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        done = subprocess.run([sys.executable, "-c", program, name], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (3, "")
