"""Searching for scenes: pystac-client over our transport against its own, in a loop and in as many threads.

    python -m bench scene_search

Every answer of the offline world takes 0.3 s longer, as a service elsewhere does. Both must find the same scenes. Over
our transport budgets, breakers, retries by kind and the SSRF guard see what is sent; its own is `requests`. With as
many threads as there are searches under way both must be equally fast.
"""

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial

from bench.goals import Goal, judge
from bench.offline_server import offline_server
from schemas.settings.services import ServicesSettings
from tasks.services import connect
from tasks.services.stac import Stac

SEARCHES, AT_ONCE, LATENCY_S = 96, 16, 0.3
COLLECTION, MOST_CLOUD = "sentinel-2-l2a", 20
START, END = datetime(2023, 7, 1, tzinfo=UTC), datetime(2023, 8, 1, tzinfo=UTC)
Box = tuple[float, float, float, float]
Found = list[list[str]]


def boxes() -> list[Box]:
    chance = random.Random(3)
    corners = [(chance.uniform(-10, 30), chance.uniform(40, 58)) for _ in range(SEARCHES)]
    return [(west, south, west + 0.05, south + 0.05) for west, south in corners]


def with_ours(url: str) -> Found:
    async def every() -> Found:
        stac = Stac(connect(ServicesSettings.model_validate({"stac": {"base_url": url}}), {}).stac)
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(box: Box) -> list[str]:
            async with gate:
                return sorted(row["id"] for row in await stac.search(COLLECTION, box, START, END, MOST_CLOUD))

        try:
            return await asyncio.gather(*(one(box) for box in boxes()))
        finally:
            await stac.close()

    return asyncio.run(every())


def with_pystac(url: str, threads: int) -> Found:
    import pystac_client

    catalog = pystac_client.Client.open(f"{url}/")
    query = {"eo:cloud_cover": {"lte": MOST_CLOUD}}
    span = f"{START:%Y-%m-%dT%H:%M:%SZ}/{END:%Y-%m-%dT%H:%M:%SZ}"

    def one(box: Box) -> list[str]:
        found = catalog.search(collections=[COLLECTION], bbox=box, datetime=span, query=query, limit=100)
        return sorted(item["id"] for item in found.items_as_dicts())

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, boxes()))


def timed(search: Callable[[], Found]) -> tuple[float, float, Found]:
    wall_s, cpu_s = time.monotonic(), time.process_time()
    found = search()
    return time.monotonic() - wall_s, time.process_time() - cpu_s, found


def main() -> int:
    with offline_server("--size", "100000") as server:
        url = f"{server.url}/stac/api/stac/v1"
        with_ours(url)  # the world computes each answer once
        server.latency(LATENCY_S)
        ours = timed(partial(with_ours, url))
        theirs = {threads: timed(partial(with_pystac, url, threads)) for threads in (1, AT_ONCE)}
    print(f"   {SEARCHES} searches, {LATENCY_S:g} s latency, {sum(map(len, ours[2]))} scenes found")
    print(f"   geofix, {AT_ONCE} at once        {ours[0]:6.1f} s, {ours[1]:5.2f} s CPU")
    for threads, (wall_s, cpu_s, _) in theirs.items():
        print(f"   pystac-client, {threads:2} threads   {wall_s:6.1f} s, {cpu_s:5.2f} s CPU")
    same = all(found == ours[2] for _, _, found in theirs.values())
    return judge(
        [
            Goal("the same scenes", float(same), 1),
            Goal("times pystac-client in a loop", theirs[1][0] / ours[0], 4),
            Goal("times pystac-client in threads", theirs[AT_ONCE][0] / ours[0], 0.8),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
