"""`geofix collect --dry-run` against the run it speaks of: requests, bytes and time, on the offline world.

    python -m bench dry_run            # or python -m bench.dry_run 2: only the case of this number

Several worlds: as it comes (it paints what it is asked for, on our own cores), one that takes a second for an answer,
one with a limit a minute; then a second run on the same lake, whose time is told by the pace of the first, and a
refresh of pictures of which some are gone or changed. Before each run the world is started anew, so that nothing the
estimate asked for is painted already.
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

WITHIN = 0.2
STREETS = ("collect.satellite.enabled=false",)


@dataclass(frozen=True)
class Case:
    """One world and one collection."""

    name: str
    places: int
    settings: tuple[str, ...] = ()
    rules: tuple[dict[str, Any], ...] = ()  # faults of the world
    world: tuple[str, ...] = ()
    again: bool = False  # on the lake of the case before


SLOW = ({"service": "*", "kind": "latency", "rate": 1.0, "seconds": 1.0},)
NEWS = (
    {"service": "*", "kind": "deleted", "rate": 0.1},
    {"service": "*", "kind": "changed", "rate": 0.1},
)
SMALL = ("--pano-width", "512")
SMALL_PICTURES = ("collect.panorama_width=512", "collect.panorama_min_pixels=1", "collect.photo_min_pixels=1")
CASES = (
    Case("streets and scenes", 60, ("collect.satellite.size_px=1000",)),
    Case("more places, at the pace of before", 130, ("collect.satellite.size_px=1000",), again=True),
    Case("a second for an answer", 600, (*STREETS, *SMALL_PICTURES), SLOW, SMALL),
    Case("a limit a minute", 120, (*STREETS, "services.mapillary.search_per_minute=200")),
    Case("refresh with news", 120, (*STREETS, "collect.refresh.after_days=0"), NEWS, again=True),
)


@dataclass
class Told:
    """What was said, or what happened."""

    requests: float
    size: float
    seconds: float


def carry_out(case: Case, folder: Path) -> tuple[Told, Told, list[tuple[str, float, float]]]:
    """(said, done, seconds by stage) of a case."""
    _geofix(folder, "plan", case, "http://127.0.0.1:9")
    with _world(case) as server:
        said = json.loads(_geofix(folder, "collect", case, server.url, "--dry-run"))
    with _world(case) as server:
        begin_s = time.monotonic()
        done = json.loads(_geofix(folder, "collect", case, server.url))
        seconds = time.monotonic() - begin_s
        log = server.ask("/control/log")
    total = said["total"]
    stages = [
        (guess["stage"], guess["seconds"], took["seconds"] - took["starting_s"])
        for guess, took in zip(said["stages"], done["stages"], strict=True)
        if took["items_in"]
    ]
    stages.append(("starting, ending", said["starting"]["seconds"], seconds - sum(took for _, _, took in stages)))
    guessed = Told(total["requests"]["value"], total["bytes"]["value"], total["seconds"])
    return guessed, Told(sum(log["requests"].values()), sum(log["bytes"].values()), seconds), stages


@contextlib.contextmanager
def _world(case: Case) -> Iterator[OfflineServer]:
    with offline_server("--size", "200000", *case.world) as server:
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


def goals(case: str, said: Told, done: Told) -> list[Goal]:
    """Said over done, for each figure."""
    pairs = {
        "requests": (said.requests, done.requests),
        "bytes": (said.size, done.size),
        "time": (said.seconds, done.seconds),
    }
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
            said, done, stages = carry_out(case, folder)
            print(f"   {case.name}, {case.places} places: said / done")
            for what, guess, truth, unit in (
                ("requests", said.requests, done.requests, ""),
                ("bytes", said.size / 1e6, done.size / 1e6, " MB"),
                ("time", said.seconds, done.seconds, " s"),
            ):
                off = guess / truth - 1
                print(f"     {what:<10}{guess:>9,.0f} / {truth:>7,.0f}{unit:<4}{off:+7.1%}", flush=True)
            for stage, guess, truth in stages:
                print(f"       {stage:<20}{guess:>7.1f} / {truth:.1f} s")
            found += goals(case.name, said, done)
    print(f"   {sum(goal.held for goal in found)} of {len(found)} figures within 20 %")
    return judge(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
