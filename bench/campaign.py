"""Collect thousands of pictures from a world full of faults, killed again and again, and prove that nothing is wrong.

    python -m bench.campaign --images 5000 --kills 30 [--faults 0.2] [--seed 1] [--keep]

One offline world answers a fifth of all requests wrong (429, 403 rate limits, 500, 502, 504, resets, cut bodies, half
JPEGs and half JSON under the right length, wrong content types, expired addresses) and another share slowly. `geofix
collect` runs against it and is killed with SIGKILL, its whole process group, at random moments: in every stretch of
the work, and every sixth time while it starts. Then it runs undisturbed until no row is left to retry.

It fails unless, at the end,
- every place has a picture or a reject with a reason, and none stands among the failures;
- every stored picture has the sha256, the size and the measures of its row, and decodes;
- no image id, and no picture of a place, stands twice;
- repeats beyond the faults are under 5 % of what was asked (`bench/campaign_repeats.py`): an answer asked for again
  carelessly, with nothing in between, or because a kill had lost it. Most that has come at a kill stands in the notes
  (`tasks/collect/notes.py`) and the spool (`tasks/collect/spool.py`) of the killed run.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.campaign_checks import MOST_REPEATS, wrong_pictures, wrong_requests, wrong_rows
from bench.campaign_repeats import Repeats, count_repeats
from flows.servers import Server, free_port
from tasks.lake import Lake

WORKERS = 2
PICTURES_PER_PLACE = 1.84  # as planned below, places without imagery counted in: measured on the offline world
LONGEST_S = 900.0  # without a new picture: something hangs
TRIES = 3  # at a kill: on a machine that is busy elsewhere a command may not even come up
LAST_RUNS = 4  # a place whose every try met a fault is left for the next run


@dataclass
class Campaign:
    """Where it takes place, and what happened."""

    folder: Path
    world: str  # URL
    environment: dict[str, str]
    images: int
    chance: random.Random
    kills: list[float] = field(default_factory=list)
    after_kills: list[float] = field(
        default_factory=list
    )  # when the next run began: the world answers a dead client too
    later_runs: list[float] = field(default_factory=list)

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def command(self, part: str) -> list[str]:
        settings = {
            "plan.places": round(self.images / PICTURES_PER_PLACE),
            "plan.seed": 12,
            "plan.spacing_km": 15,  # search boxes do not overlap: no two places want the same picture
            "offline.serve": "false",
            "services.mapillary.base_url": f"{self.world}/mapillary",
            "services.mapillary.timeout_s": 60,
            "services.mapillary.backoff_s": 0.2,
            "collect.panoramas": 2,
            "collect.photos": 1,
            "collect.panorama_width": 512,
            "collect.panorama_min_pixels": 1,
            "collect.photo_min_pixels": 1,
            "collect.satellite.enabled": "false",
            "collect.refresh.after_days": "null",
            "spread.workers": WORKERS,
        }
        options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        return [sys.executable, "-m", "flows.cli", part, "--lake", str(self.lake), *options]

    def ask(self, path: str, value: Any = None, method: str = "GET") -> Any:
        body = None if value is None else json.dumps(value).encode()
        request = urllib.request.Request(
            f"{self.world}{path}", body, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120) as answer:
            return json.load(answer)

    def pictures(self) -> int:
        """Pictures sent so far."""
        statuses = self.ask("/control/log")["statuses"].get("mapillary-cdn", {})
        return sum(statuses.get(code, 0) for code in ("200", "206"))

    def begin(self) -> None:
        """Another run starts."""
        if len(self.after_kills) < len(self.kills):
            self.after_kills.append(time.time())

    def run(self, part: str) -> int:
        """Run to the end, undisturbed."""
        self.begin()
        done = subprocess.run(
            self.command(part), env=self.environment, cwd=self.folder, capture_output=True, text=True, check=False
        )
        if done.returncode not in (0, 3):
            raise SystemExit(f"geofix {part} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.returncode

    def run_and_kill(self, pictures: int, seconds: float) -> str:
        """Kill the command's process group once it has got so many more pictures, and some seconds later."""
        self.begin()
        log = self.folder / "collect.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command("collect"),
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        enough, deadline = self.pictures() + pictures, time.monotonic() + LONGEST_S
        while process.poll() is None and self.pictures() < enough and time.monotonic() < deadline:
            time.sleep(0.1)
        moment = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < moment:
            time.sleep(0.02)
        if process.poll() is not None:
            return f"ended by itself with {process.returncode}: {log.read_text(errors='replace')[-300:]}"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.kills.append(time.time())
        return "killed"


def rules(share: float) -> list[dict[str, Any]]:
    """Faults of every kind, each as often as the others, together the share of requests; and slow answers besides."""
    statuses: list[dict[str, Any]] = [{"kind": "status", "status": status} for status in (429, 403, 500, 502, 504)]
    every: dict[str, list[dict[str, Any]]] = {
        # 403 of the image host is not a rate limit but an address it does not know; such never pass.
        "mapillary": [*statuses, *({"kind": k} for k in ("reset", "truncate", "content_type", "invalid_json"))],
        "mapillary-cdn": [
            *({"kind": "status", "status": status} for status in (429, 500, 502, 504)),
            # invalid_json halves any body and gives its length as right: half a JPEG.
            *({"kind": k} for k in ("reset", "truncate", "content_type", "invalid_json", "expired_url")),
        ],
    }
    every["mapillary-tiles"] = every["mapillary"][:-1]
    found: list[dict[str, Any]] = []
    for service, kinds in every.items():
        # Each rule draws for itself: the shares of all together are 1 - (1 - rate) ** number.
        rate = 1 - (1 - share) ** (1 / len(kinds))
        found += [{"service": service, "rate": rate, **kind} for kind in kinds]
        found.append({"service": service, "kind": "slow_drip", "seconds": 2.0, "rate": 0.02})
    return found


def carry_out(campaign: Campaign, kills: int, share: float, seed: int) -> None:
    """Plan, then collect under faults and kills, then to the end."""
    campaign.run("plan")
    campaign.ask("/control/faults", {"seed": seed, "rules": rules(share)}, "POST")
    campaign.ask("/control/journal", {}, "POST")
    stretch = campaign.images / (kills + 2)
    for number in range(1, kills + 1):
        for _ in range(TRIES):
            if number % 6 == 0:  # while it starts, before it has asked for anything
                said = campaign.run_and_kill(0, campaign.chance.uniform(0.5, 12.0))
            else:
                more = max(1, round(stretch * campaign.chance.uniform(0.2, 1.0)))
                said = campaign.run_and_kill(more, campaign.chance.uniform(0.0, 3.0))
            print(f"  {number:>3}: {said}, {campaign.pictures():,} pictures sent", flush=True)
            if len(campaign.kills) == number:
                break
    print("  last run, undisturbed …", flush=True)
    for _ in range(LAST_RUNS):
        if campaign.run("collect") == 0:
            break
        campaign.later_runs.append(time.time())
        print("  some places met nothing but faults; again …", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=5000, help="pictures to collect, about")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--faults", type=float, default=0.2, help="share of requests that meet one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the lake where it is")
    options = parser.parse_args()
    begin = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="geofix-campaign-"))
    port, api_port = free_port(), free_port()
    url, api = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{api_port}/api"
    here = [sys.executable, "-m"]
    size = ["--size", "200000", "--pano-width", "512"]
    world = Server([*here, "infra.offline", "--port", str(port), *size], f"{url}/health", folder / "world.log")
    # One for all runs: a start costs more than the work between two kills.
    prefect = Server([*here, "infra.prefect_server", "--port", str(api_port)], f"{api}/health", folder / "prefect.log")
    os.environ["PREFECT_HOME"] = str(folder / "prefect")
    campaign = Campaign(folder, url, os.environ | {"PREFECT_API_URL": api}, options.images, random.Random(options.seed))
    try:
        world.ensure()
        prefect.ensure()
        print(f"{options.images:,} pictures, {options.faults:.0%} faults, {options.kills} kills", flush=True)
        carry_out(campaign, options.kills, options.faults, options.seed)
        journal, log = campaign.ask("/control/journal"), campaign.ask("/control/log")
    finally:
        world.stop()
        prefect.stop()
    lake = Lake(campaign.lake)
    repeats = count_repeats([tuple(entry) for entry in journal], campaign.after_kills, campaign.later_runs)
    found = wrong_rows(lake) + wrong_pictures(lake) + wrong_requests(repeats)
    if len(campaign.kills) < options.kills:
        found.append(f"only {len(campaign.kills)} of {options.kills} kills fell into a running command")
    _tell(lake, repeats, log, len(journal), time.monotonic() - begin)
    for line in found:
        print(f"  WRONG {line}")
    if options.keep:
        (folder / "journal.json").write_text(json.dumps({"kills": campaign.after_kills, "journal": journal}))
        print(f"  lake: {lake.root}")
    else:
        shutil.rmtree(folder)
    if found:
        raise SystemExit(1)
    print("  nothing lost, nothing twice, nothing damaged")


def _tell(lake: Lake, repeats: Repeats, log: dict[str, Any], asked: int, seconds: float) -> None:
    images, rejects = lake.read("images"), lake.read("rejects").filter(stage="collect")
    kinds = Counter(kind.split(":")[1] for kind, times in log["faults"].items() for _ in range(times))
    lost = sum(repeats.by_kill)
    print(f"  {images.height:,} pictures of {images['place_id'].n_unique():,} places, {seconds / 60:.1f} min")
    print(f"  {rejects.height:,} places rejected: {dict(Counter(rejects['reason'].to_list()))}")
    print(f"  {asked:,} requests, {repeats.faults:,} ({repeats.faults / max(asked, 1):.1%}) not answered well")
    print(f"  faults by kind: {dict(kinds)}")
    print(
        f"  {repeats.distinct:,} different things answered; asked for again: {repeats.careless:,} "
        f"({repeats.careless_share:.2%}) carelessly, {repeats.by_fault:,} after faults, {lost:,} after kills "
        f"({lost / max(len(repeats.by_kill), 1):.1f} a kill, at most {max(repeats.by_kill, default=0)}); "
        f"{repeats.all_share:.2%} beyond the faults (under {MOST_REPEATS:.0%} wanted), and "
        f"{repeats.with_unheard_share:.2%} with the {repeats.unheard:,} answers that a kill cut short"
    )


if __name__ == "__main__":
    main()
