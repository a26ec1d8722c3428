"""Panoramas from a service that takes a second for every answer, beside the official SDK in a loop; then at its limit.

The first part runs the real stage `collect` of street view (frame, Ray workers, budgets, store and tables) over 2,000
places, each in a street of its own, one panorama each, and the `mapillary` package in a loop over a few of them: find
what is near, get the address of the original, download it. The same places are collected from Panoramax beside it.
Pictures are small and painted beforehand, and Ray's workers
are started: what is measured is how the waiting is spent. The second part gives the service a budget that binds, and
compares the rate at which requests arrive with it.

    python -m bench collect_latency
"""

import json
import logging
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from bench.goals import Goal, judge
from bench.offline_server import OfflineServer, offline_server
from infra.offline.world import World
from schemas.settings.collect import CollectSettings
from schemas.settings.services import OFFLINE_MAPILLARY_TOKEN, ServicesSettings
from schemas.settings.spread import SpreadSettings
from tasks.collect.street_view import STAGE
from tasks.lake import Commit, Lake
from tasks.runtime.on_ray.start import start_ray, stop_ray
from tasks.runtime.runner import Context, StageResult, run
from tasks.services import connect

PLACES, SDK_PLACES = 2_000, 15
LATENCY_S = 1.0
LIMIT_PER_MINUTE, LIMITED_PLACES = 600, 500
SEED, SIZE, WIDTH = 7, 3_000, 512  # of its places, four of five have a good panorama
NEAR_M = 500.0
GOAL_RATIO, GOAL_RATE = 25.0, 0.95
TOO_FAST = 1.01  # never over the limit: what looking five times a second can err by

Spot = tuple[float, float]


def spots(count: int) -> list[Spot]:
    """Points of the offline world with a good panorama at hand, each in a street of its own."""
    world = World(SEED, SIZE, WIDTH)
    found: list[Spot] = []
    for index in range(SIZE):
        good = [r for r in world.images(index) if r.is_pano and r.condition == "clear"]
        if good:
            found.append((good[0].lat, good[0].lon))
        if len(found) == count:
            return found
    raise SystemExit("the world has too few panoramas")


def places(lake: Lake, near: list[Spot]) -> None:
    """Write planned places, each a few steps from its spot."""
    chance = random.Random(1)
    rows = []
    for number, (lat, lon) in enumerate(near):
        step = chance.uniform(-1e-4, 1e-4)
        rows.append(
            {"place_id": f"p{number:05d}", "country": "FR", "lat": lat + step, "lon": lon + step, "split": "train"}
        )
    lake.upsert("places", rows, Commit("bench", 1))


PATHS = {"mapillary": "/mapillary", "panoramax": "/panoramax/api"}


def collect(
    folder: Path, server: OfflineServer, near: list[Spot], provider: str = "mapillary", **limits: float
) -> StageResult:
    """The stage over a place for each spot, into a new lake."""
    lake = Lake(folder)
    places(lake, near)
    services = ServicesSettings.model_validate({provider: {"base_url": server.url + PATHS[provider], **limits}})
    settings = CollectSettings(
        providers=(provider,), photos=0, panorama_width=WIDTH, panorama_min_pixels=1, half_sizes_m=(NEAR_M,)
    )
    return run(STAGE, settings, Context(lake, connect(services, {}), SpreadSettings()))


@contextmanager
def sdk_at(server: OfflineServer) -> Iterator[Any]:
    """The official client, unchanged: below it, its two hosts lead to the offline world."""
    import mapillary.interface as sdk
    import requests

    hosts = {"https://graph.mapillary.com": "/mapillary", "https://tiles.mapillary.com": "/mapillary-tiles"}
    send = requests.adapters.HTTPAdapter.send

    def redirected(adapter: Any, request: Any, **options: Any) -> Any:
        for host, prefix in hosts.items():
            if request.url.startswith(host):
                request.url = server.url + prefix + request.url.removeprefix(host)
        return send(adapter, request, **options)

    for name in ("mapillary.utils.client", "mapillary.utils.verify"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with mock.patch.object(requests.adapters.HTTPAdapter, "send", redirected):
        sdk.set_access_token(OFFLINE_MAPILLARY_TOKEN)
        yield sdk


def sdk_loop(server: OfflineServer, near: list[Spot]) -> float:
    """Seconds a picture with the SDK."""
    import requests

    with sdk_at(server) as sdk:
        start = time.perf_counter()
        for lat, lon in near:
            close = sdk.get_image_close_to(latitude=lat, longitude=lon, image_type="pano", radius=NEAR_M)
            image_id = str(close.to_dict()["features"][0]["properties"]["id"])
            row = json.loads(sdk.image_from_key(image_id, fields=["thumb_original_url"]))
            url = row["features"]["properties"]["thumb_original_url"]
            assert requests.get(url, timeout=60).content.startswith(b"\xff\xd8")
        return (time.perf_counter() - start) / len(near)


class Arrivals(threading.Thread):
    """Counts of requests that the limit covers, of pictures' rows and of tiles, looked at five times a second."""

    def __init__(self, server: OfflineServer) -> None:
        super().__init__(daemon=True)
        self._server, self._over = server, threading.Event()
        self.counts: list[tuple[float, int]] = []

    def run(self) -> None:
        while not self._over.wait(0.2):
            requests = self._server.ask("/control/log")["requests"]
            asked = sum(requests.get(name, 0) for name in ("mapillary", "mapillary-tiles"))
            self.counts.append((time.monotonic(), asked))

    def per_minute(self) -> float:
        """While the limit binds: without the first and the last tenth, when fewer places are under way."""
        self._over.set()
        self.join()
        whole = self.counts[-1][1]
        middle = [(at_s, count) for at_s, count in self.counts if 0.1 * whole <= count <= 0.9 * whole]
        (start_s, first), (end_s, last) = middle[0], middle[-1]
        return 60 * (last - first) / (end_s - start_s)


def quick_part(folder: Path, server: OfflineServer, near: list[Spot]) -> Goal:
    server.latency(LATENCY_S)
    server.ask("/control/log", "DELETE")
    start = time.perf_counter()
    result = collect(folder, server, near)
    seconds = time.perf_counter() - start
    asked = server.ask("/control/log")["requests"]
    assert result.kept == len(near), result
    different = Lake(folder).read("images", columns=["sha256"])["sha256"].n_unique()
    theirs = sdk_loop(server, near[:SDK_PLACES])
    ours = seconds / len(near)
    requests = ", ".join(f"{count:,} {name}" for name, count in sorted(asked.items()))
    print(f"   stage collect: {len(near):,} panoramas, {different:,} different, in {seconds:.1f} s, {ours:.3f} s each")
    print(f"     asked for: {requests}")
    print(f"   mapillary SDK: {SDK_PLACES} panoramas in a loop, {theirs:.2f} s each")
    print(f"   collect is {theirs / ours:.0f} times the SDK (at least {GOAL_RATIO:.0f} wanted)")
    return speed_goal(theirs, ours)


def panoramax_part(folder: Path, server: OfflineServer, near: list[Spot]) -> None:
    """The same places from the other provider; where none of the pictures is licensed, a place gets none."""
    server.ask("/control/log", "DELETE")
    start = time.perf_counter()
    collect(folder, server, near, "panoramax")
    seconds = time.perf_counter() - start
    kept, asked = Lake(folder).read("images").height, server.ask("/control/log")["requests"]
    requests = ", ".join(f"{count:,} {name}" for name, count in sorted(asked.items()))
    print(f"   Panoramax: {kept:,} panoramas of {len(near):,} places in {seconds:.1f} s, {seconds / kept:.3f} s each")
    print(f"     asked for: {requests}")


def limited_part(folder: Path, server: OfflineServer, near: list[Spot]) -> Goal:
    server.latency(LATENCY_S)
    server.ask("/control/log", "DELETE")
    arrivals = Arrivals(server)
    arrivals.start()
    result = collect(folder, server, near[:LIMITED_PLACES], requests_per_minute=LIMIT_PER_MINUTE)
    rate = arrivals.per_minute()
    assert result.kept == len(near[:LIMITED_PLACES]), result
    share = rate / LIMIT_PER_MINUTE
    print(f"   limit of {LIMIT_PER_MINUTE:,} requests a minute: {rate:,.0f} a minute arrive")
    print(f"   {100 * share:.1f} % of the limit (at least {100 * GOAL_RATE:.0f} wanted, never over 100)")
    return rate_goal(rate)


def speed_goal(theirs_s: float, ours_s: float) -> Goal:
    """Seconds a picture, the SDK's over ours."""
    return Goal("SDK / collect, seconds a panorama", theirs_s / ours_s, at_least=GOAL_RATIO)


def rate_goal(per_minute: float) -> Goal:
    """The rate at which requests arrive where the limit binds, as a share of the limit."""
    return Goal("share of the rate limit", per_minute / LIMIT_PER_MINUTE, at_least=GOAL_RATE, at_most=TOO_FAST)


def main() -> int:
    near = spots(PLACES)
    options = ("--seed", str(SEED), "--size", str(SIZE), "--pano-width", str(WIDTH))
    with tempfile.TemporaryDirectory() as name, offline_server(*options) as server:
        folder = Path(name)
        start_ray(SpreadSettings())
        collect(folder / "painted", server, near)
        found = [quick_part(folder / "quick", server, near)]
        panoramax_part(folder / "panoramax", server, near)
        found.append(limited_part(folder / "limited", server, near))
    stop_ray()
    return judge(found)


if __name__ == "__main__":
    sys.exit(main())
