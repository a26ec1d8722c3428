"""Trajectories of the offline world for benchmarks: pictures fetched, attempts made as the stage makes them.

`python -m bench.agent_pictures PICTURES FILE [RECIPE [KEY=VALUE …]]` writes one JSON row a trajectory, with the truth;
`… all FOLDER KEPT PICTURES` a file for every published system, until KEPT of its trajectories are kept.
Pictures that FILE has rows of already are passed over, so that a run that was stopped goes on.
"""

import asyncio
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.offline_server import offline_server
from infra.offline.world import World
from schemas import paper_tables
from schemas.recipes import recipe_folders, training_recipes
from schemas.settings.services import ServicesSettings
from schemas.settings.synthesize import SynthesizeSettings
from tasks.collect.providers.mapillary.client import Mapillary
from tasks.lake import Lake
from tasks.recipes.recipe import RECIPES
from tasks.runtime.stage import WorkerSetup
from tasks.services import connect
from tasks.synthesize.trajectories import open_context, work

SIZE = 20_000
CORES = len(os.sched_getaffinity(0))
AT_ONCE = 3 * CORES
PROCESSES = -(-CORES // 4)  # of the offline world, which computes with four threads each
LANDMARK = ("MONUMENT",)  # the word on the plates of landmarks


def services(url: str) -> ServicesSettings:
    """Every service of an offline world at this address."""
    names = {"mapillary": "mapillary", "geocoder": "nominatim", "search": "tavily", "maps": "maps", "chat": "openai/v1"}
    return ServicesSettings.model_validate(
        {name: {"base_url": f"{url}/{path}", "timeout_s": 300, "total_timeout_s": 600} for name, path in names.items()}
    )


async def make(
    url: str,
    pictures: int,
    settings: SynthesizeSettings,
    folder: Path,
    file: Path | None = None,
    enough: int | None = None,
) -> list[dict[str, Any]]:
    """The rows that the stage would write for the first pictures of the world, a picture a place.

    With a file the rows of a picture are added to it at once, and pictures that it holds already are passed over. With
    `enough` no picture is begun once so many trajectories are kept.
    """
    connections = connect(services(url), {})
    lake = Lake(folder)
    context = open_context(settings, WorkerSetup(lake, connections))
    mapillary = Mapillary(connections.street_view["mapillary"])
    rows: list[dict[str, Any]] = []
    began = time.monotonic()
    written = _written(file)
    done, kept = {row["image_id"] for row in written}, sum(row["verdict"] == "kept" for row in written)
    waiting = (place for place in places(pictures, World(size=SIZE)) if place["image_id"] not in done)

    async def one_after_another() -> None:
        for place in waiting:
            if enough is not None and kept + sum(row["verdict"] == "kept" for row in rows) >= enough:
                return
            found = await mapillary.image(place["source_id"])
            data = await mapillary.fetch(found["thumb_original_url"])
            outcome = await work(item_of(place, lake.images.put(data, "jpg"), settings.recipe), context)
            truth = {f"true_{name}": place[name] for name in ("lat", "lon", "country", "region", "city")}
            truth |= {name: place[name] for name in ("painted", "drives_on")}
            made = [{**row, **truth} for row in outcome.rows["trajectories"]]
            rows.extend(made)
            if file is not None:
                with file.open("a", encoding="utf-8") as opened:
                    opened.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made))
            if len(rows) % 25 == 0:
                print(f"   {len(rows)} trajectories, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))
    return rows


def item_of(place: dict[str, Any], sha256: str, recipe: str) -> dict[str, Any]:
    """A picture as the stage is given it."""
    unknown: dict[str, Any] = {"notes": None, "note_id": None}
    return {**place, "sha256": sha256, "extension": "jpg", "recipe": recipe, "snapshot_id": "bench", **unknown}


def _written(file: Path | None) -> list[dict[str, Any]]:
    """Rows that a file has already."""
    if file is None or not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def places(count: int, world: World) -> Iterator[dict[str, Any]]:
    """The first clear pictures of a world, as curation leaves them, with all that is known: the truth included."""
    clear = (index for index in range(world.size) if world.first_image(index).condition == "clear")
    for index in itertools.islice(clear, count):
        record = world.first_image(index)
        place = world.place(index)
        shops = [line for shop in place.shops for line in shop.lines]
        yield {
            "image_id": f"picture-{index}",
            "source_id": record.image_id,
            "lat": record.lat,
            "lon": record.lon,
            "country": place.facts.name,
            "region": place.city.admin1 or None,
            "city": place.city.name,
            # What the painter wrote into the picture, and how traffic goes there: for the checks, for no model.
            "painted": [*shops, place.street, *(name for name, _ in place.towns_ahead), place.local_name, *LANDMARK],
            "drives_on": place.facts.drives_on,
        }


def produce(pictures: int, file: Path, recipe: str = "spotagent", changes: Mapping[str, Any] | None = None) -> None:
    """Write the trajectories of n pictures."""
    settings = SynthesizeSettings.model_validate({"recipe": recipe, **(changes or {})})
    assert recipe in RECIPES
    with tempfile.TemporaryDirectory() as folder, offline_server("--size", str(SIZE)) as server:
        asyncio.run(make(server.url, pictures, settings, Path(folder), file))


def produce_all(folder: Path, kept: int, pictures: int) -> None:
    """A file of rows for every published system, each with its own rules, of one world whose pictures are read once."""
    folder.mkdir(parents=True, exist_ok=True)
    with offline_server("--size", str(SIZE), "--processes", str(PROCESSES)) as server:
        for recipe in (name for name in training_recipes() if (recipe_folders()[name] / paper_tables.FILE).is_file()):
            with tempfile.TemporaryDirectory() as lake:
                settings = SynthesizeSettings(recipe=recipe)
                asyncio.run(make(server.url, pictures, settings, Path(lake), folder / f"{recipe}.jsonl", kept))


if __name__ == "__main__":
    if sys.argv[1] == "all":
        produce_all(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
        raise SystemExit
    given = dict(pair.split("=", 1) for pair in sys.argv[4:])
    produce(
        int(sys.argv[1]),
        Path(sys.argv[2]),
        *sys.argv[3:4],
        changes={name: json.loads(value) if value[:1] in "[{0123456789" else value for name, value in given.items()},
    )
