"""Sentinel-2 as a second witness: how many planted wrong positions it finds while it accuses 1 % of the right ones.

Street pictures of the offline world are looked at as its judge does (scene categories, from pixels alone). The ground
comes by STAC from its scenes, at each picture's own position and at a wrong one: latitude and longitude exchanged, a
sign lost, a digit changed (by 0.1 to 0.9 degrees), minutes cut off, or the position of another picture. The threshold
is set on one half of the right positions, and false alarms are counted on the other.

    python -m bench second_witness --pictures 200
"""

import argparse
import asyncio
import json
import math
import random
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.goals import Goal, judge
from bench.offline_world import Server, ask
from infra.offline.chat.judge import categories
from infra.offline.chat.scene import measure_scene
from infra.offline.chat.sight import SeenPicture
from infra.offline.render import paint
from infra.offline.world import DEFAULT_SEED, World
from schemas.settings.curate import WitnessSettings
from schemas.settings.satellite import SatelliteSettings
from schemas.settings.services import ServicesSettings
from tasks.geo.boundaries import country_of
from tasks.geo.second_witness import contradiction
from tasks.reward.metrics import share
from tasks.services import Stac, connect
from tasks.services.sentinel.ground_cover import GroundCover, ground_cover

FALSE_ALARMS = 0.01
SIZE = 20_000  # places of the world
AT_ONCE = 4
DEFAULT = WitnessSettings().max_contradiction
Point = tuple[float, float]


def wrong_positions(points: Sequence[Point], rng: random.Random) -> list[tuple[str, Point]]:
    """For each right position a wrong one and its kind, the kinds in turn; a kind that moves nothing is passed over."""
    found = []
    for number, (lat, lon) in enumerate(points):
        other = points[(number + len(points) // 2) % len(points)]
        digit = rng.choice((-1, 1)) * rng.randint(1, 9) / 10
        kinds = [
            ("exchanged", (lon, lat)),
            ("sign lost", (abs(lat), abs(lon))),
            ("digit", (lat + digit, lon)),
            ("whole degrees", (float(math.trunc(lat)), float(math.trunc(lon)))),
            ("another picture's", other),
        ]
        usable = [one for one in kinds if abs(one[1][0]) <= 80 and one[1] != (lat, lon)]
        first = kinds[number % len(kinds)]
        found.append(first if first in usable else usable[number % len(usable)])
    return found


def scenes_of(world: World, place: int) -> dict[str, str]:
    """What a judge says a picture of the place shows."""
    image = paint(world, world.images(place)[0], text=False)
    return categories(SeenPicture(image.width, image.height, measure_scene(image), ()))


async def covers(url: str, points: Sequence[Point]) -> list[GroundCover | None]:
    """The ground at each point."""
    services = ServicesSettings.model_validate({"stac": {"base_url": f"{url}/stac/api/stac/v1"}})
    stac, limit, settings = Stac(connect(services, {}, ()).stac), asyncio.Semaphore(AT_ONCE), SatelliteSettings()

    async def one(point: Point) -> GroundCover | None:
        async with limit:
            return await ground_cover(stac, *point, settings)

    try:
        return await asyncio.gather(*map(one, points))
    finally:
        await stac.close()


def measure(pictures: int, seed: int, keep: Path | None = None) -> dict[str, Any]:
    """Contradictions of right and wrong positions; with `keep` what they follow from is written there."""
    world, rng = World(seed, SIZE, pano_width=1024), random.Random(seed)
    drawn = rng.sample(range(SIZE), 2 * pictures)
    points = [(world.place(one).lat, world.place(one).lon) for one in drawn]
    # Scenes have the coast of the packaged outlines: what lies on an islet they lack would be in the sea there.
    on_land = country_of(*np.array(points).T) != ""
    usable = [n for n in range(len(drawn)) if on_land[n] and abs(points[n][0]) < 80][:pictures]
    places, points = [drawn[n] for n in usable], [points[n] for n in usable]
    scenes = [scenes_of(world, one) for one in places]
    wrong = wrong_positions(points, rng)
    server = Server(SIZE, seed)
    try:
        link, until = server.connect(), time.monotonic() + 300
        while True:
            try:
                ask(link, "/health")
                break
            except OSError:
                link.close()
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
        found = asyncio.run(covers(f"http://127.0.0.1:{server.port}", [*points, *(point for _, point in wrong)]))
    finally:
        server.close()
    rows = [
        {"kind": kind, "point": point, "scenes": seen, "near": cover and cover.near, "around": cover and cover.around}
        for (kind, point), seen, cover in zip(
            [*(("right", one) for one in points), *wrong], [*scenes, *scenes], found, strict=True
        )
    ]
    if keep:
        keep.write_text(json.dumps(rows))
    return figures(rows)


def figures(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The threshold, false alarms and what is found of each kind. Where no scene shows the ground, none is accused."""
    scores: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        known = row["near"] is not None
        scores[row["kind"]].append(contradiction(row["scenes"], row["near"], row["around"]) if known else 0.0)
    right = np.array(scores.pop("right"))
    threshold = float(np.quantile(right[::2], 1 - FALSE_ALARMS, method="higher"))
    wrong = np.array([one for values in scores.values() for one in values])
    accused = int((right[1::2] > threshold).sum())
    return {
        "threshold": threshold,
        "right": len(right),
        "unseen": sum(row["near"] is None for row in rows),
        "false_alarms": share("false alarms", accused, len(right[1::2])),
        "found": share("found", int((wrong > threshold).sum()), len(wrong)),
        "by_default": [
            share(f"{name} by default", int((values > DEFAULT).sum()), len(values))
            for name, values in (("false alarms", right), ("found", wrong))
        ],
        "by_kind": {
            kind: share(kind, sum(one > threshold for one in values), len(values)) for kind, values in scores.items()
        },
    }


def main(arguments: Sequence[str] = ()) -> int:
    """Prints the figures; 1 when fewer than a third are found, or far more than 1 % are accused."""
    parser = argparse.ArgumentParser(prog="python -m bench second_witness")
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--keep", type=Path, help="write what was measured to this file")
    parser.add_argument("--rows", type=Path, help="judge such a file again; ask nothing")
    options = parser.parse_args(list(arguments))
    if options.rows:
        found = figures(json.loads(options.rows.read_text()))
    else:
        found = measure(options.pictures, options.seed, options.keep)
    print(f"{found['right']} right positions, threshold {found['threshold']:.3f}; {found['unseen']} without a scene")
    for one in (found["false_alarms"], found["found"], *found["by_kind"].values(), *found["by_default"]):
        print(f"{one.name:24} {100 * one.value:5.1f} % ({100 * one.low:.1f} to {100 * one.high:.1f}), n {one.n}")
    return judge(
        [
            Goal("wrong positions found", found["found"].value, at_least=1 / 3),
            Goal("false alarms, lower bound of their interval", found["false_alarms"].low, at_most=FALSE_ALARMS),
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
