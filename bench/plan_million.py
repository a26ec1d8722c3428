"""A plan of 1,000,000 places beside one of 100,000: seconds and memory of the whole command, each in a fresh lake.

What is measured is what a user runs, `geofix plan`: quotas, draws, digests, the rows' way into the lake, the accounts
and the report. Memory is the most that the command's process ever held. The Prefect page that it starts is a program
of its own, smaller and not counted.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.goals import Goal, judge

GOAL_MB, GOAL_TIMES = 1500, 12.0


@dataclass(frozen=True)
class Found:
    """What a plan took, and what came of it."""

    seconds: float
    cpu_seconds: float
    megabytes: float
    placed: int
    refused: int


def measure(places: int, geofix: Sequence[str] = (sys.executable, "-m", "flows.cli")) -> Found:
    """Run `geofix plan` in a process and a lake of its own."""
    with tempfile.TemporaryDirectory(prefix="geofix-bench-") as folder:
        words = ["plan", "--lake", f"{folder}/lake", "--set", f"plan.places={places}", "--json"]
        begin = time.perf_counter()
        command = subprocess.Popen([*geofix, *words], stdout=subprocess.PIPE, text=True)
        assert command.stdout is not None
        said = command.stdout.read()
        # Asked of the system for this one process, as it ends: no sampling is needed.
        _, status, used = os.wait4(command.pid, 0)
        command.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - begin
    if command.returncode:
        raise SystemExit(f"geofix {' '.join(words)} ended with code {command.returncode}")
    [stage] = json.loads(said)["stages"]
    cpu_seconds, megabytes = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6
    return Found(seconds, cpu_seconds, megabytes, stage["kept"], stage["rejected"])


def main(few: int = 100_000, many: int = 1_000_000) -> int:
    small, large = measure(few), measure(many)
    for places, found in ((few, small), (many, large)):
        print(
            f"  {places:9,} places  {found.seconds:6.1f} s  {found.cpu_seconds:6.1f} s of CPU"
            f"  {found.megabytes:6.0f} MB  {found.placed:,} placed, {found.refused:,} without room"
        )
    times = large.seconds / small.seconds
    print(f"  {times:.1f} times the time (at most {GOAL_TIMES:g}), memory limit {GOAL_MB:,} MB")
    goals = [Goal("times the time", times, at_most=GOAL_TIMES), Goal("megabytes", large.megabytes, at_most=GOAL_MB)]
    return judge(goals)


if __name__ == "__main__":
    raise SystemExit(main(*map(int, sys.argv[1:])))
