"""A sheet of places to look at: `python -m infra.derive.contact_sheet OUT.jpg [--seed 7] [--places 24] [--maps 4]`."""

import argparse
import sys
from pathlib import Path

from PIL import Image, ImageDraw

from infra.offline.facts import countries
from infra.offline.maps.drawing import draw_map
from infra.offline.maps.view import View
from infra.offline.render import paint
from infra.offline.render.signs import font
from infra.offline.scenes.paint import scene_preview
from infra.offline.world import DEFAULT_SEED, ImageRecord, World

_CELL, _CAPTION, _COLUMNS = (440, 248), 24, 4
_MAPS = (("roadmap", 16), ("satellite", 16), ("roadmap", 12), ("satellite", 12))
_SCENES = (
    ("23KPQ", "2023-12-07", "Rio de Janeiro, Brazil"),
    ("54SUE", "2023-09-27", "Tokyo, Japan"),
    ("33UUU", "2023-09-28", "Berlin, Germany"),
    ("36RUU", "2023-09-28", "Cairo, Egypt"),
)

Cell = tuple[str, Image.Image]  # caption and picture


def street_cells(world: World, count: int) -> list[Cell]:
    """Pictures of streets, each in another country as long as there are some."""
    chosen: dict[str, ImageRecord] = {}
    for index in range(world.size):
        if len(chosen) == count:
            break
        clear = next((record for record in world.images(index) if record.condition == "clear"), None)
        if clear is not None:
            chosen.setdefault(world.place(index).country, clear)
    cells = []
    for iso2, record in chosen.items():
        image = paint(world, record)
        # Of a panorama only the part with the street is shown: sky and nadir tell little.
        if record.is_pano:
            width, height = image.size
            image = image.crop((width // 4, round(height * 0.22), 3 * width // 4, round(height * 0.78)))
        else:
            image = image.crop((0, round(image.height * 0.14), image.width, round(image.height * 0.89)))
        kind = "panorama" if record.is_pano else "photo"
        cells.append((f"{world.place(record.place).city.name}, {countries()[iso2].name} ({kind})", image))
    return cells


def map_cells(world: World, count: int) -> list[Cell]:
    """Maps and satellite pictures of the surroundings of some places."""
    cells = []
    for k in range(count):
        place = world.place(k // 2)  # a map and the ground it shows, side by side
        style, zoom = _MAPS[k % len(_MAPS)]
        image = draw_map(world, View.around(place.lat, place.lon, zoom, *_CELL), style)
        cells.append((f"{place.city.name}, {countries()[place.country].name} ({style}, zoom {zoom})", image))
    return cells


def scene_cells(world: World, count: int) -> list[Cell]:
    """Whole Sentinel-2 scenes in true colour, 110 km wide, cut to the cell's shape."""
    cells = []
    for tile, date, name in _SCENES[:count]:
        image = scene_preview(world, tile, date, 880)
        cut = (image.height - image.width * _CELL[1] // _CELL[0]) // 2
        cells.append((f"{name} (scene {tile}, {date})", image.crop((0, cut, image.width, image.height - cut))))
    return cells


def contact_sheet(cells: list[Cell], columns: int = _COLUMNS) -> Image.Image:
    """The cells in rows, a caption under each."""
    rows = -(-len(cells) // columns)
    sheet = Image.new("RGB", (columns * _CELL[0], rows * (_CELL[1] + _CAPTION)), (255, 255, 255))
    draw = ImageDraw.Draw(sheet)
    for k, (caption, image) in enumerate(cells):
        left, top = (k % columns) * _CELL[0], (k // columns) * (_CELL[1] + _CAPTION)
        sheet.paste(image.resize(_CELL, Image.Resampling.LANCZOS), (left, top))
        draw.text((left + 6, top + _CELL[1] + 3), caption, font=font(14, False), fill=(20, 20, 20))
    return sheet


def main(argv: list[str] | None = None) -> int:
    """Writes the sheet; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m infra.derive.contact_sheet")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--places", type=int, default=24)
    parser.add_argument("--maps", type=int, default=4)
    parser.add_argument("--scenes", type=int, default=len(_SCENES))
    options = parser.parse_args(argv)
    world = World(options.seed, 3000, 2048)
    sheet = contact_sheet(
        street_cells(world, options.places) + map_cells(world, options.maps) + scene_cells(world, options.scenes)
    )
    sheet.save(options.out, quality=86)
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
