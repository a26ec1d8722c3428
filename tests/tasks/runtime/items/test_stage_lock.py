"""One run of a stage at a time."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.lake import Lake
from tasks.runtime.items.stage_lock import stage_lock

HOLD = """
import sys
from tasks.lake import Lake
from tasks.runtime.items.stage_lock import stage_lock
with stage_lock(Lake(sys.argv[1]), "collect"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_a_second_run_waits_until_the_first_one_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    lake = Lake(tmp_path)
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdin is not None and other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    waits = 0

    def wait(seconds: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 3:
            if how == "ends":
                other.stdin.close()  # type: ignore[union-attr]
            else:
                other.kill()
            other.wait(300)

    with stage_lock(lake, "review", wait):
        assert waits == 0, "another stage is nobody's"
    with caplog.at_level(logging.WARNING), stage_lock(lake, "collect", wait):
        assert waits == 3
    other.stdout.close()
    assert caplog.text.count(f"(process {other.pid}) is at work on it") == 1


def test_one_process_may_take_its_turn_again(tmp_path: Path) -> None:
    for _ in range(2):
        with stage_lock(Lake(tmp_path), "collect", lambda _: pytest.fail("nobody holds it")):
            pass
