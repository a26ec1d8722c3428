"""`geofix collect --dry-run` against the run it speaks of, on the offline world: requests and bytes within 25 %.

    python -m bench dry_run

A first collection is the measure; then three times as many places are planned, and what is said of them is compared
with what they take. The time is printed beside the real one and not judged: Ray's start is in the first one's.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.goals import Goal, judge
from bench.offline_server import offline_server

WITHIN = 0.25
PLACES, MORE_PLACES = 60, 240
SETTINGS = ("offline.serve=false", "collect.satellite.size_px=1000")


@dataclass
class Cost:
    """As estimated, or as it was."""

    requests: float
    size: float
    seconds: float


def compare(folder: Path) -> tuple[Cost, Cost]:
    """(estimated, real) of the second collection."""
    with offline_server("--size", "200000") as server:

        def geofix(part: str, places: int, *options: str) -> str:
            urls = (f"mapillary.base_url={server.url}/mapillary", f"stac.base_url={server.url}/stac/api/stac/v1")
            settings = [*SETTINGS, *(f"services.{url}" for url in urls), f"plan.places={places}"]
            command = [sys.executable, "-m", "flows.cli", part, "--lake", str(folder / "lake"), "--json", *options]
            command += [word for setting in settings for word in ("--set", setting)]
            done = subprocess.run(command, cwd=folder, env=os.environ, capture_output=True, text=True, check=False)
            if done.returncode not in (0, 3):
                raise SystemExit(f"geofix {part} ended with {done.returncode}: {done.stderr[-2000:]}")
            return done.stdout

        def sent() -> tuple[int, int]:
            log = server.ask("/control/log")
            return sum(log["requests"].values()), sum(log["bytes"].values())

        geofix("plan", PLACES)
        geofix("collect", PLACES)
        geofix("plan", MORE_PLACES)
        total = json.loads(geofix("collect", MORE_PLACES, "--dry-run"))["total"]
        (requests, size), begin_s = sent(), time.monotonic()
        geofix("collect", MORE_PLACES)
        seconds, (all_requests, all_bytes) = time.monotonic() - begin_s, sent()
    guessed = Cost(total["requests"], total["bytes"], total["seconds"])
    return guessed, Cost(all_requests - requests, all_bytes - size, seconds)


def goals(said: Cost, done: Cost) -> list[Goal]:
    """Estimated over real, for requests and bytes."""
    pairs = {"requests": (said.requests, done.requests), "bytes": (said.size, done.size)}
    return [
        Goal(f"{what}, said / done", guess / truth if truth else float("nan"), 1 - WITHIN, 1 + WITHIN)
        for what, (guess, truth) in pairs.items()
    ]


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="geofix-dry-run-") as folder:
        said, done = compare(Path(folder))
    for what, guess, truth, unit in (
        ("requests", said.requests, done.requests, ""),
        ("bytes", said.size / 1e6, done.size / 1e6, " MB"),
        ("time", said.seconds, done.seconds, " s"),
    ):
        print(f"     {what:<10}{guess:>9,.0f} / {truth:>7,.0f}{unit:<4}{guess / truth - 1:+7.1%}", flush=True)
    return judge(goals(said, done))


if __name__ == "__main__":
    sys.exit(main())
