"""Several processes that serve one offline world, and end together however the first one ends."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest


@pytest.mark.whole
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_they_share_a_port_and_end_with_the_first(how: signal.Signals) -> None:
    command = [sys.executable, "-m", "infra.offline", "--port", "0", "--size", "200", "--processes", "3"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    url = first.stdout.readline().split()[-1]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: json.load(urllib.request.urlopen(f"{url}/health"))["size"], range(24)))
    assert answers == [200] * 24
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    assert len(children) == 2
    first.send_signal(how)
    first.wait(30)
    deadline = time.monotonic() + 30
    while any(_lives(int(one)) for one in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(_lives(int(one)) for one in children)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_none_at_all_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    from infra.offline.server import main

    assert main(["--size", "200", "--processes", "0"]) == 2
    assert "--processes 0: at least 1" in capfd.readouterr().err
