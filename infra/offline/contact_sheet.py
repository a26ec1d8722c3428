"""A sheet of places to look at: `python -m infra.offline.contact_sheet OUT.png [--seed 7] [--places 24]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from PIL import Image, ImageDraw

from infra.offline.facts import countries
from infra.offline.render import paint
from infra.offline.render.fonts import font
from infra.offline.world import DEFAULT_SEED, World

_CELL, _CAPTION = (480, 270), 26


def contact_sheet(world: World, places: int, columns: int = 4) -> Image.Image:
    """Pictures of places in as many different countries as possible, a caption under each."""
    chosen: dict[str, int] = {}
    for index in range(world.size):
        if len(chosen) == places:
            break
        if any(record.condition == "clear" for record in world.images(index)):
            chosen.setdefault(world.place(index).country, index)
    rows = -(-len(chosen) // columns)
    sheet = Image.new("RGB", (columns * _CELL[0], rows * (_CELL[1] + _CAPTION)), (255, 255, 255))
    draw = ImageDraw.Draw(sheet)
    for k, (iso2, index) in enumerate(chosen.items()):
        record = next(r for r in world.images(index) if r.condition == "clear")
        image = paint(world, record)
        # Of a panorama only the part with the street is shown: sky and nadir tell little.
        if record.is_pano:
            width, height = image.size
            image = image.crop((width // 4, round(height * 0.22), 3 * width // 4, round(height * 0.78)))
        else:
            image = image.crop((0, round(image.height * 0.14), image.width, round(image.height * 0.89)))
        left, top = (k % columns) * _CELL[0], (k // columns) * (_CELL[1] + _CAPTION)
        sheet.paste(image.resize(_CELL, Image.Resampling.LANCZOS), (left, top))
        kind = "panorama" if record.is_pano else "photo"
        text = f"{world.place(index).city.name}, {countries()[iso2].name} ({kind})"
        draw.text((left + 6, top + _CELL[1] + 3), text, font=font(15, False), fill=(20, 20, 20))
    return sheet


def main(argv: list[str] | None = None) -> int:
    """Writes the sheet; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m infra.offline.contact_sheet")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--places", type=int, default=24)
    options = parser.parse_args(argv)
    contact_sheet(World(options.seed, 3000, 2048), options.places).save(options.out)
    print(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
