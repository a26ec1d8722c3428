"""`geofix down` ends what `geofix up` started, and nothing else."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows import background
from flows.options import RunOptions
from schemas.errors import GeofixError
from tasks.lake import Lake

pytestmark = pytest.mark.whole

SLEEPER = "import time\nprint(1, flush=True)\ntime.sleep(600)"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPER
PARENT = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {SLEEPER!r}]).wait()"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


class Processes(list[subprocess.Popen[bytes]]):
    def start(self, program: str, new_session: bool = True) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", program]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=new_session)
        self.append(process)
        assert process.stdout is not None and process.stdout.readline(), "it runs"
        return process


@pytest.fixture
def processes() -> Iterator[Processes]:
    found = Processes()
    yield found
    for process in found:
        process.kill()
        process.wait()


def write(lake: Lake, **processes: dict[str, Any]) -> Path:
    file = background.state_file(lake)
    file.parent.mkdir(parents=True, exist_ok=True)
    background.UpState("http://127.0.0.1:1/api", processes).write(file)
    return file


def known(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    return {"pid": process.pid, "started": background.start_time(process.pid)}


def test_what_was_started_is_ended_with_its_children(lake: Lake, processes: Processes) -> None:
    server, worker = processes.start(SLEEPER), processes.start(PARENT)
    file = write(lake, server=known(server), worker=known(worker))
    child = [one for one in background._group_members(worker.pid) if one != worker.pid]
    assert len(child) == 1 and background.down(lake) == (["server", "worker"], [])
    assert server.wait(10) == worker.wait(10) == -signal.SIGTERM
    assert background.start_time(child[0]) is None and not file.exists()


def test_one_that_does_not_end_is_killed(lake: Lake, processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "STOP_S", 0.3)
    stubborn = processes.start(STUBBORN)
    write(lake, server=known(stubborn))
    assert background.down(lake) == (["server"], [])
    assert stubborn.wait(10) == -signal.SIGKILL


def test_a_stranger_with_the_same_id_is_left_alone(lake: Lake, processes: Processes) -> None:
    stranger = processes.start(SLEEPER)
    file = write(lake, server={**known(stranger), "started": "another boot 123"})
    assert background.down(lake) == ([], ["server"])
    assert stranger.poll() is None and not file.exists()


def test_an_unknown_start_time_ends_nothing(lake: Lake, processes: Processes) -> None:
    stranger = processes.start(SLEEPER)
    write(lake, server={"pid": stranger.pid, "started": None})
    assert background.down(lake) == ([], ["server"]) and stranger.poll() is None


@pytest.mark.parametrize(
    "text",
    ['{"api": "http://127.0.0.1:4200/api", "processes": {"prefect-se', "", "[1, 2]", '{"api": 1, "other": 2}',
     json.dumps({"api": "http://127.0.0.1:1/api", "processes": {"server": os.getpid()}})],
    ids=["truncated", "empty", "list", "other", "old"],  # the last one's text differs between processes
)  # fmt: skip
def test_a_truncated_or_foreign_file_is_one_line(lake: Lake, text: str) -> None:
    file = background.state_file(lake)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    with pytest.raises(
        GeofixError, match=r"up\.json is damaged or of another version, so no process is ended"
    ) as caught:
        background.down(lake)
    assert "\n" not in str(caught.value) and file.read_text() == text
    assert background.running_api(lake) is None


def test_nothing_was_started(lake: Lake) -> None:
    assert background.down(lake) == ([], [])


def test_up_ends_what_a_dead_server_left(
    lake: Lake, processes: Processes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server, worker, world = processes.start(SLEEPER), processes.start(PARENT), processes.start(SLEEPER)
    left = {"prefect-server": known(server), "prefect-worker": known(worker), "offline-world": known(world)}
    write(lake, **left)
    server.kill()
    server.wait()
    new = processes.start(SLEEPER)
    monkeypatch.setattr(background, "_start", lambda options, lake, port: write(lake, **{"prefect-server": known(new)}))
    assert background.up(RunOptions(), lake)["processes"] == {"prefect-server": known(new)}
    assert worker.wait(10) == world.wait(10) == -signal.SIGTERM
    assert "ended what it left: prefect-worker, offline-world" in caplog.text
    assert background.down(lake) == (["prefect-server"], [])


def test_the_port_of_up_is_the_one_given(lake: Lake, processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    with background.listen_on(0) as taken, pytest.raises(GeofixError, match="another process listens there"):
        background.up(RunOptions(), lake, taken.getsockname()[1])
    write(lake, **{"prefect-server": known(processes.start(SLEEPER))})
    monkeypatch.setattr(background, "answers", lambda *_: True)
    assert background.up(RunOptions(), lake, 1)["api"] == "http://127.0.0.1:1/api"
    with pytest.raises(GeofixError, match=r"runs at http://127\.0\.0\.1:1/api already; `geofix down` ends it"):
        background.up(RunOptions(), lake, 4300)
