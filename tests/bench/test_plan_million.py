"""The bench of a large plan runs the command itself, and a goal that is missed is its exit code."""

import sys

import pytest

from bench import plan_million
from bench.plan_million import Found, main, measure

# In place of the command, which takes its time: holds 200 MB for a moment, and frees them before it ends.
STAND_IN = """
import json, sys
held = bytearray(200_000_000)
held[::4096] = b"x" * len(held[::4096])
del held
assert sys.argv[1:3] == ["plan", "--lake"] and sys.argv[-3:] == ["--set", "plan.places=20", "--json"], sys.argv
print(json.dumps({"stages": [{"stage": "plan", "kept": 19, "rejected": 1}]}))
"""


def test_what_the_command_held_is_measured_in_its_own_process() -> None:
    found = measure(20, (sys.executable, "-c", STAND_IN))
    assert (found.placed, found.refused) == (19, 1)
    assert found.megabytes > 200 and found.cpu_seconds > 0 and found.seconds > 0


def test_a_command_that_fails_is_no_measurement() -> None:
    with pytest.raises(SystemExit, match=r"geofix plan .*plan\.places=20 --json ended with code 3"):
        measure(20, (sys.executable, "-c", "raise SystemExit(3)"))


@pytest.mark.parametrize(
    ("seconds", "megabytes", "code"), [(120.0, 1500.0, 0), (121.0, 900.0, 1), (50.0, 1501.0, 1)], ids=str
)
def test_a_missed_goal_is_told(
    seconds: float, megabytes: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {100_000: Found(10.0, 10.0, 700.0, 100_000, 0), 1_000_000: Found(seconds, 99.0, megabytes, 999_996, 4)}
    monkeypatch.setattr(plan_million, "measure", found.__getitem__)
    assert main() == code
    assert "999,996 placed, 4 without room" in capsys.readouterr().out
