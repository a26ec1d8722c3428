"""What a person waits for: commands with little or nothing to do, beside `git status` and `prefect version`.

    python -m bench felt        # medians of five; a machine without other work

`serve` is until its first answer about a model, `up` until it returns with all servers ready.
"""

import contextlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from bench.goals import Goal, judge

TIMES = 5
GEOFIX = [sys.executable, "-m", "flows.cli"]
PLAN = ["plan", "--set", "plan.places=60"]
# Command, and the most seconds it may take.
COMMANDS: dict[str, tuple[list[str], float]] = {
    "plan, nothing to do": (PLAN, 3.0),
    "score of 3 rows": (["score", "answers.csv"], 1.0),
    "tables": (["tables"], 1.0),
    "show places": (["show", "places"], 1.0),
    "doctor": (["doctor"], 2.0),
}


def timed(command: list[str], folder: Path) -> float:
    began = time.monotonic()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):  # the doctor ends with 1 where something is missing
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-500:]}")
    return time.monotonic() - began


def serve_until_answer(folder: Path) -> float:
    began = time.monotonic()
    command = [*GEOFIX, "serve", "finds-2", "--port", "18761"]
    server = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while time.monotonic() - began < 120:
            with contextlib.suppress(OSError), urllib.request.urlopen("http://127.0.0.1:18761/v1/models", timeout=1):
                return time.monotonic() - began
            time.sleep(0.05)
        raise SystemExit("geofix serve does not answer")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def up(folder: Path) -> float:
    seconds = timed([*GEOFIX, "up", "--port", "14299"], folder)
    timed([*GEOFIX, "down"], folder)
    return seconds


def main() -> int:
    goals = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "answers.csv").write_text("id,lat,lon,true_lat,true_lon\na,1,2,1,2\nb,1,2,1,3\nc,1,2,4,2\n")
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
        timed([*GEOFIX, *PLAN], folder)
        beside = {"git status": ["git", "status"], "prefect version": [sys.executable, "-m", "prefect", "version"]}
        for what, command in beside.items():
            print(f"   {what}: {statistics.median(timed(command, folder) for _ in range(TIMES)):.2f} s", flush=True)
        waits: list[tuple[str, Callable[[], float], float, int]] = [
            (what, lambda words=words: timed([*GEOFIX, *words], folder), most, TIMES)  # type: ignore[misc]
            for what, (words, most) in COMMANDS.items()
        ]
        waits.append(("serve, first answer", lambda: serve_until_answer(folder), 6.0, TIMES))
        waits.append(("up", lambda: up(folder), 15.0, 3))
        for what, wait, most, times in waits:
            seconds = statistics.median(wait() for _ in range(times))
            print(f"   {what}: {seconds:.2f} s", flush=True)
            goals.append(Goal(f"{what}, seconds", seconds, at_most=most))
    return judge(goals)


if __name__ == "__main__":
    raise SystemExit(main())
