"""Collect thousands of pictures from a world full of faults, killed again and again, and prove that nothing is wrong.

    python -m bench.campaign --images 5000 --kills 30 [--providers mapillary,panoramax] [--faults 0.2] [--keep]

One offline world answers a fifth of all requests wrong, in every way it knows (`bench/campaign_checks.py`): statuses,
resets, cut bodies, half JPEGs and half JSON under the right length, wrong content types, fields renamed, retyped or
gone, records twice, expired addresses; pictures that are gone, or replaced halfway through the campaign; clocks that go
wrong; slow answers. `geofix collect` runs against it and is killed with SIGKILL, its whole process group, at random
moments: in every stretch of the street-view pictures, and every sixth time while it starts. Then it runs undisturbed
until no row is left to retry; only then come the satellite scenes, which meet all faults but no kill.

It fails unless, at the end,
- every place has a picture or a reject with a reason, of the streets and from above, and none is among the failures;
- every stored picture has the sha256, the size and the measures of its row, and decodes;
- no image id, and no picture of a place, stands twice;
- repeats beyond the faults are under 5 % of what was asked (`bench/campaign_checks.py`): an answer asked for again
  carelessly, with nothing in between, or because a kill had lost it; in a later run, for a place that had not failed.
  What has come at a kill is in the response store (`tasks/collect/responses.py`).
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
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

import polars as pl

from bench.campaign_checks import (
    MOST_REPEATS,
    LaterRun,
    Repeats,
    by_part,
    count_repeats,
    rules,
    wrong_pictures,
    wrong_requests,
    wrong_rows,
)
from flows.servers import Server, listen_on
from schemas.settings.services import OFFLINE_MAPILLARY_TOKEN
from tasks.lake import Lake

WORKERS = 2
PICTURES_PER_PLACE = 2.8  # as planned below, places without imagery counted in: measured on the offline world
LONGEST_S = 900.0  # without a new picture: something hangs
TRIES = 3  # at a kill: on a machine that is busy elsewhere a command may not even come up
SENDING = {"mapillary-cdn": 1.0, "panoramax": 0.4}  # services, and the share of their answers that are pictures
LAST_RUNS = 4  # a place whose every try met a fault is left for the next run


@dataclass
class Campaign:
    """Where it takes place, and what happened."""

    folder: Path
    world: str  # URL
    environment: dict[str, str]
    images: int
    providers: str
    chance: random.Random
    kills: list[float] = field(default_factory=list)
    after_kills: list[float] = field(
        default_factory=list
    )  # when the next run began: the world answers a dead client too
    later_runs: list[LaterRun] = field(default_factory=list)

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def command(self, part: str) -> list[str]:
        settings = {
            "plan.places": round(self.images / PICTURES_PER_PLACE),
            "plan.seed": 12,
            "offline.serve": "false",
            "collect.providers": f"[{self.providers}]",
            "services.mapillary.base_url": f"{self.world}/mapillary",
            "services.panoramax.base_url": f"{self.world}/panoramax/api",
            "services.panoramax.timeout_s": 60,
            "services.panoramax.backoff_s": 0.2,
            "services.stac.base_url": f"{self.world}/stac/api/stac/v1",
            "services.stac.backoff_s": 0.2,
            "services.mapillary.timeout_s": 60,
            "services.mapillary.backoff_s": 0.2,
            "collect.panoramas": 2,
            "collect.photos": 1,
            "collect.panorama_width": 512,
            "collect.panorama_min_pixels": 1,
            "collect.photo_min_pixels": 1,
            "collect.satellite.size_px": 64,
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
        """Pictures sent so far; of Panoramax, whose searches are answered by the same service, about."""
        statuses = self.ask("/control/log")["statuses"]
        sent = {name: sum(statuses.get(name, {}).get(code, 0) for code in ("200", "206")) for name in SENDING}
        return sum(round(SENDING[name] * count) for name, count in sent.items())

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

    def left_over(self) -> LaterRun:
        """What failed, and so may be asked for again by the run that begins now."""
        lake = Lake(self.lake)
        failed = lake.read("failures", columns=["stage", "item_id"])
        streets = failed.filter(stage="collect").select(place_id="item_id")
        points = lake.read("places").join(streets, on="place_id").select("lat", "lon").rows()
        return LaterRun(time.time(), tuple(points), scenes="collect.satellite" in failed["stage"])

    def locate(self, image_id: str) -> tuple[float, float] | None:
        """Where the world has a picture; no fault may be in force."""
        if not image_id.isdigit():
            image_id = str(uuid.UUID(image_id).int & (1 << 62) - 1)  # one world: Panoramax's id leads to Mapillary's
        try:
            found = self.ask(f"/mapillary/{image_id}?fields=geometry&access_token={quote(OFFLINE_MAPILLARY_TOKEN)}")
        except HTTPError:
            return None
        lon, lat = found["geometry"]["coordinates"]
        return lat, lon

    def run_and_kill(self, pictures: int, seconds: float) -> str:
        """Kill the command's process group once it has this many more pictures, some seconds later."""
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


def carry_out(campaign: Campaign, kills: int, share: float, seed: int) -> None:
    """Plan, then collect under faults and kills, then to the end."""
    campaign.run("plan")
    campaign.ask("/control/faults", {"seed": seed, "rules": rules(share)}, "POST")
    campaign.ask("/control/journal", {}, "POST")
    # Scenes, a third of the pictures, come last: no kill is to wait for more of the others than there are.
    stretch = campaign.images * 0.65 / (kills + 2)
    for number in range(1, kills + 1):
        if number == kills // 2 + 1:
            campaign.ask("/control/faults", {"seed": seed, "rules": rules(share, late=True)}, "POST")
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
        campaign.later_runs.append(campaign.left_over())
        print("  some places met nothing but faults; again …", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=5000, help="pictures to collect, about")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--providers", default="mapillary,panoramax", help="of street view, in order")
    parser.add_argument("--faults", type=float, default=0.2, help="share of requests that meet one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the lake where it is")
    options = parser.parse_args()
    begin = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="geofix-campaign-"))
    listen_socket = listen_on(0)
    port = listen_socket.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    here = [sys.executable, "-m"]
    size = ["--size", "200000", "--pano-width", "512"]
    world = Server(
        [*here, "infra.offline", "--port", str(port), *size], f"{url}/health", folder / "world.log", listen_socket
    )
    chance = random.Random(options.seed)
    campaign = Campaign(folder, url, dict(os.environ), options.images, options.providers, chance)
    try:
        world.ensure()
        print(
            f"{options.images:,} pictures, {options.faults:.0%} faults, {options.kills} kills, {options.providers}",
            flush=True,
        )
        carry_out(campaign, options.kills, options.faults, options.seed)
        journal, log = campaign.ask("/control/journal"), campaign.ask("/control/log")
        campaign.ask("/control/faults", method="DELETE")
        entries = [tuple(entry) for entry in journal]
        # Apart: scenes need many requests and meet no kill, and would hide what is asked again of the streets.
        repeats = {
            part: count_repeats(mine, campaign.after_kills, campaign.later_runs, campaign.locate)
            for part, mine in by_part(entries).items()
        }
    finally:
        world.stop()
    lake = Lake(campaign.lake)
    found = wrong_rows(lake) + wrong_pictures(lake)
    found += [f"{part}: {line}" for part, one in repeats.items() for line in wrong_requests(one)]
    if len(campaign.kills) < options.kills:
        found.append(f"only {len(campaign.kills)} of {options.kills} kills fell into a running command")
    _tell(lake, repeats, log, len(journal), time.monotonic() - begin)
    for line in found:
        print(f"  WRONG {line}")
    if options.keep:
        (folder / "journal.json").write_text(json.dumps({"kills": campaign.after_kills, "journal": journal}))
        print(f"  lake: {lake.uri}")
    else:
        shutil.rmtree(folder)
    if found:
        raise SystemExit(1)
    print("  nothing lost, nothing twice, nothing damaged")


def _tell(lake: Lake, repeats: dict[str, Repeats], log: dict[str, Any], asked: int, seconds: float) -> None:
    images = lake.read("images")
    rejects = lake.read("rejects").filter(pl.col("stage").is_in(["collect", "collect.satellite"]))
    kinds = Counter(kind.split(":")[1] for kind, times in log["faults"].items() for _ in range(times))
    faults = sum(one.faults for one in repeats.values())
    print(f"  {images.height:,} pictures of {images['place_id'].n_unique():,} places, {seconds / 60:.1f} min")
    print(f"  by kind: {dict(Counter(images['kind'].to_list()))}")
    print(f"  {rejects.height:,} rejected: {dict(Counter(rejects['reason'].to_list()))}")
    print(f"  {asked:,} requests, {faults:,} ({faults / max(asked, 1):.1%}) not answered well")
    print(f"  faults by kind: {dict(kinds)}")
    for part, one in repeats.items():
        _tell_repeats(part, one)


def _tell_repeats(part: str, repeats: Repeats) -> None:
    lost = sum(repeats.by_kill)
    print(
        f"  {part}: {repeats.distinct:,} different things answered; asked for again: {repeats.careless:,} "
        f"({repeats.careless_share:.2%}) carelessly, {repeats.by_fault:,} after faults, {lost:,} after kills "
        f"({lost / max(len(repeats.by_kill), 1):.1f} a kill, at most {max(repeats.by_kill, default=0)}); "
        f"{repeats.all_share:.2%} beyond the faults (under {MOST_REPEATS:.0%} wanted), and "
        f"{repeats.with_unheard_share:.2%} with the {repeats.unheard:,} answers that a kill cut short"
    )


if __name__ == "__main__":
    main()
