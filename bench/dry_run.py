"""`geofix collect --dry-run` against the run it speaks of, on the offline world: requests and bytes within 25 %.

    python -m bench dry_run            # or python -m bench.dry_run 2: only the case of this number

The time is printed beside the real one and not judged: it is a lower bound. Before each run the world is started anew,
so that nothing the estimate asked for is rendered already.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.goals import Goal, judge
from bench.offline_server import OfflineServer, offline_server

WITHIN = 0.25
STREETS = ("collect.satellite.enabled=false",)


@dataclass(frozen=True)
class Case:
    """One world and one collection."""

    name: str
    places: int
    settings: tuple[str, ...] = ()
    rules: tuple[dict[str, Any], ...] = ()  # faults of the world
    again: bool = False  # on the lake of the case before


NEWS = (
    {"service": "*", "kind": "deleted", "rate": 0.1},
    {"service": "*", "kind": "changed", "rate": 0.1},
)
CASES = (
    Case("streets and scenes", 60, ("collect.satellite.size_px=1000",)),
    Case("a limit a minute", 120, (*STREETS, "services.mapillary.search_per_minute=200")),
    Case("refresh with news", 120, (*STREETS, "collect.refresh.after_days=0"), NEWS, again=True),
)


@dataclass
class Cost:
    """As estimated, or as it was."""

    requests: float
    size: float
    seconds: float


def carry_out(case: Case, folder: Path) -> tuple[Cost, Cost]:
    """(estimated, real) of a case."""
    _geofix(folder, "plan", case, "http://127.0.0.1:9")
    with _world(case) as server:
        said = json.loads(_geofix(folder, "collect", case, server.url, "--dry-run"))
    with _world(case) as server:
        begin_s = time.monotonic()
        _geofix(folder, "collect", case, server.url)
        seconds = time.monotonic() - begin_s
        log = server.ask("/control/log")
    total = said["total"]
    guessed = Cost(total["requests"], total["bytes"], total["seconds"])
    return guessed, Cost(sum(log["requests"].values()), sum(log["bytes"].values()), seconds)


@contextlib.contextmanager
def _world(case: Case) -> Iterator[OfflineServer]:
    with offline_server("--size", "200000") as server:
        if case.rules:
            server.ask("/control/faults", "POST", {"seed": 4, "rules": list(case.rules)})
        yield server


def _geofix(folder: Path, part: str, case: Case, url: str, *options: str) -> str:
    settings = [
        "offline.serve=false",
        f"services.mapillary.base_url={url}/mapillary",
        f"services.stac.base_url={url}/stac/api/stac/v1",
        f"plan.places={case.places}",
        *case.settings,
    ]
    command = [sys.executable, "-m", "flows.cli", part, "--lake", str(folder / "lake"), "--json", *options]
    command += [word for setting in settings for word in ("--set", setting)]
    done = subprocess.run(command, cwd=folder, env=os.environ, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(f"geofix {part} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def goals(case: str, said: Cost, done: Cost) -> list[Goal]:
    """Estimated over real, for requests and bytes."""
    pairs = {"requests": (said.requests, done.requests), "bytes": (said.size, done.size)}
    return [
        Goal(f"{case}: {what}, said / done", guess / truth if truth else float("nan"), 1 - WITHIN, 1 + WITHIN)
        for what, (guess, truth) in pairs.items()
    ]


def main(names: Sequence[str] = ()) -> int:
    found: list[Goal] = []
    with tempfile.TemporaryDirectory(prefix="geofix-dry-run-") as root:
        folder = Path(root)
        for number, case in enumerate(CASES):
            if names and str(number) not in names:
                continue
            if not case.again:
                folder = Path(root) / str(number)
                folder.mkdir()
            said, done = carry_out(case, folder)
            print(f"   {case.name}, {case.places} places: said / done")
            for what, guess, truth, unit in (
                ("requests", said.requests, done.requests, ""),
                ("bytes", said.size / 1e6, done.size / 1e6, " MB"),
                ("time", said.seconds, done.seconds, " s"),
            ):
                off = guess / truth - 1
                print(f"     {what:<10}{guess:>9,.0f} / {truth:>7,.0f}{unit:<4}{off:+7.1%}", flush=True)
            found += goals(case.name, said, done)
    print(f"   {sum(goal.held for goal in found)} of {len(found)} figures within 25 %")
    return judge(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
