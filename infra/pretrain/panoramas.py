"""Panoramas of the offline world for an agent to locate: the original in tiles, its truth and its street plate beside.

The street plate's words and box serve a teacher and the figures; a policy is shown pixels alone. Every picture is a
file and a row, for training also a trajectory; a picture whose row is there is not painted again.
"""

from __future__ import annotations

import base64
import json
import multiprocessing
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from infra.offline.facts import countries
from infra.offline.render import encode, paint
from infra.offline.render.signs import SeenSign
from infra.offline.world import ImageRecord, World
from infra.pretrain.boards import readable
from infra.pretrain.pictures import FREE, clear_images, is_held_out
from infra.pretrain.teacher import SUFFIX, Taught, is_placed, teach, write_tiles
from tasks.agent.toolbox import Toolbox
from tasks.imaging import images
from tasks.recipes.spotmini import MAX_PIXELS, MIN_PIXELS

WORLD_SEED, WORLD_SIZE = 7, 20_000  # the first 20,000 places of the world that the packaged base was taught in
LEAST_LETTERS_PX = 14.0
VIEW, VIEW_WIDTH = ".jpg", 1344  # three times a view: fewer pixels leave other edges than the whole panorama's view has
Row = dict[str, Any]

_WORLD: World | None = None  # for forked processes: a world is too large to be sent
_TOOLS: Toolbox | None = None
_TEACHES = False


def choose(world: World, count: int, held_out: bool, seed: int) -> list[ImageRecord]:
    """One panorama each of `count` places with a street name in Latin letters, of held-out cells or of the others."""
    order = list(range(world.size))
    random.Random(f"{seed} {held_out}").shuffle(order)
    found: list[ImageRecord] = []
    for index in order:
        if len(found) == count:
            break
        place = world.sign_texts(index)
        if is_held_out(place) != held_out or not readable(place.street):
            continue
        panoramas = [one for one in clear_images(world, index) if one.is_pano and one.condition == "clear"]
        if panoramas:
            found.append(panoramas[0])
    return found


def paint_all(
    world: World,
    records: Sequence[ImageRecord],
    folder: Path,
    processes: int,
    tools: Toolbox | None = None,
    text: bool = True,
    teaches: bool = True,
) -> None:
    """Paint those that are missing, on several cores where there are some.

    With `tools` a place whose street they place elsewhere is not painted: its trajectory would be rejected, and no
    attempt could earn anything. For each of the others a trajectory is written, if it `teaches`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    global _WORLD, _TOOLS, _TEACHES
    _WORLD, _TOOLS, _TEACHES = world, tools, teaches
    missing = [(one.image_id, str(folder), text) for one in records if not _row_file(folder, one.image_id).is_file()]
    _each(_paint, missing, processes)


def paint_views(world: World, records: Sequence[ImageRecord], folder: Path, processes: int) -> None:
    """Paint the views alone of those that are missing, at a third of the size: enough for what has no zoom."""
    folder.mkdir(parents=True, exist_ok=True)
    global _WORLD
    _WORLD = world
    missing = [(one.image_id, str(folder)) for one in records if not _row_file(folder, one.image_id).is_file()]
    _each(_paint_view, missing, processes)


def _each(paints: Callable[[Any], None], tasks: Sequence[Any], processes: int) -> None:
    if processes < 2 or len(tasks) < 2:
        for task in tasks:
            paints(task)
        return
    # What feeds a GPU beside it goes first.
    with multiprocessing.get_context("fork").Pool(processes, os.nice, (10,)) as pool:
        for _ in pool.imap_unordered(paints, tasks):
            pass


def rows_of(folder: Path, records: Sequence[ImageRecord], suffix: str = SUFFIX) -> list[Row]:
    """Truth and street plate of each painted picture, with the file it lies in."""
    found = []
    for one in records:
        row: Row = json.loads(_row_file(folder, one.image_id).read_text(encoding="utf-8"))
        if row["outcome"] != "too_far":
            found.append({**row, "file": str(folder / f"{one.image_id}{suffix}")})
    return found


def outcomes(folder: Path, records: Sequence[ImageRecord]) -> dict[str, int]:
    """How many trajectories were kept, and how many were not for which reason."""
    return dict(Counter(json.loads(_row_file(folder, one.image_id).read_text())["outcome"] for one in records))


def trajectory_of(row: Row) -> Taught:
    """The kept trajectory of a training picture."""
    found = json.loads(Path(row["file"]).with_suffix(".taught").read_text(encoding="utf-8"))
    return Taught(found["messages"], found["tools"], [base64.b64decode(one) for one in found["pictures"]])


def _row_file(folder: Path, image_id: str) -> Path:
    return folder / f"{image_id}.json"


def _paint(task: tuple[str, str, bool]) -> None:
    image_id, where, text = task
    assert _WORLD is not None
    folder, record = Path(where), _WORLD.image(image_id)
    assert record is not None
    row = _truth(record, folder / f"{image_id}{SUFFIX}")
    if _TOOLS is not None and not is_placed(row, _TOOLS):
        row["outcome"] = "too_far"
    else:
        signs: list[SeenSign] = []
        painted = paint(_WORLD, record, signs, text=text)
        view, scale = images.model_view(encode(painted), MAX_PIXELS, MIN_PIXELS)
        write_tiles(Path(row["file"]), painted, view, scale)
        plates = [one for one in signs if one.lines == (row["street"],) and one.free >= FREE]
        plate = max(plates, key=lambda one: one.letters_px[0], default=None)
        if plate is not None and plate.letters_px[0] >= LEAST_LETTERS_PX:
            row["plate"] = list(plate.box)
        if _TOOLS is not None and _TEACHES:
            taught = teach(row, _TOOLS)
            row["outcome"] = taught if isinstance(taught, str) else "kept"
            if isinstance(taught, Taught):
                pictures = [base64.b64encode(one).decode() for one in taught.pictures]
                kept = {"messages": taught.messages, "tools": taught.tools, "pictures": pictures}
                Path(row["file"]).with_suffix(".taught").write_text(json.dumps(kept), encoding="utf-8")
    _write_row(folder, row)


def _paint_view(task: tuple[str, str]) -> None:
    image_id, where = task
    assert _WORLD is not None
    folder, record = Path(where), _WORLD.image(image_id)
    assert record is not None
    row = _truth(record, folder / f"{image_id}{VIEW}")
    painted = paint(_WORLD, replace(record, width=VIEW_WIDTH, height=VIEW_WIDTH // 2))
    Path(row["file"]).write_bytes(images.model_view(encode(painted), MAX_PIXELS, MIN_PIXELS)[0])
    _write_row(folder, row)


def _truth(record: ImageRecord, file: Path) -> Row:
    assert _WORLD is not None
    place = _WORLD.place(record.place)
    return {
        "image_id": record.image_id, "lat": record.lat, "lon": record.lon, "country": countries()[place.country].name,
        "region": place.city.admin1, "city": place.city.name, "street": place.street, "plate": None, "outcome": "asked",
        "file": str(file),
    }  # fmt: skip


def _write_row(folder: Path, row: Row) -> None:
    partial = _row_file(folder, row["image_id"]).with_suffix(".partial")
    partial.write_text(json.dumps(row), encoding="utf-8")
    partial.rename(_row_file(folder, row["image_id"]))
