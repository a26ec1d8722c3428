"""Names on the street map; a name's place depends on the map alone, so that neighbouring tiles agree."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw

from infra.offline.facts import countries
from infra.offline.gazetteer import Gazetteer
from infra.offline.maps.streets import StreetLine
from infra.offline.maps.view import View
from infra.offline.render.fonts import font, is_cjk
from infra.offline.world import World

# Smallest towns named, by zoom.
_LEAST = {3: 6_000_000, 4: 2_500_000, 5: 900_000, 6: 350_000, 7: 140_000, 8: 50_000, 9: 18_000, 10: 6_000, 11: 2_000}
_CELL = (130, 34)  # pixels: of towns so close together only the largest is named
_PAD_PX = 150
_SHOPS_FROM, _NAMES_FROM = 16, 15
_DOTS = {"bakery": (196, 120, 40), "pharmacy": (30, 140, 70), "market": (60, 90, 190), "restaurant": (190, 60, 60)}


def draw_labels(image: Image.Image, world: World, view: View, streets: list[StreetLine]) -> None:
    """Writes the names of countries, towns, streets and shops."""
    draw = ImageDraw.Draw(image)
    if 3 <= view.zoom <= 5:
        for iso2, (lat, lon) in _middles(world.gazetteer).items():
            x, y = (float(v) for v in view.pixel(np.array(lat), np.array(lon)))
            if _is_close(view, x, y) and (view.zoom > 3 or _is_large(world.gazetteer, iso2)):
                _write(draw, x, y, countries()[iso2].name.upper(), 11, (130, 110, 134), "mm")
    for across, down, name, people in _towns(world.gazetteer, view):
        size = 11 if people < 50_000 else 13 if people < 500_000 else 15
        if view.zoom <= 9:
            draw.ellipse(
                [across - 2.5, down - 2.5, across + 2.5, down + 2.5], fill=(90, 90, 90), outline=(255, 255, 255)
            )
            _write(draw, across + 5, down, name, min(size, 13), (50, 50, 50), "lm")
        else:
            _write(draw, across, down, name, size, (50, 50, 50), "mm")
    if view.zoom >= _NAMES_FROM:
        for line in streets:
            (x0, y0), (x1, y1) = line.ends
            _write(draw, (x0 + x1) / 2, (y0 + y1) / 2 - 9, line.place.street, 11, (80, 70, 60), "mm")
            if view.zoom >= _SHOPS_FROM:
                _shops(draw, line, view.zoom)


def _shops(draw: ImageDraw.ImageDraw, line: StreetLine, zoom: int) -> None:
    (x0, y0), (x1, y1) = line.ends
    shops = line.place.shops if zoom > _SHOPS_FROM else line.place.shops[:1]
    for k, sign in enumerate(shops):
        part = 0.5 + (9.0 + 15.0 * k) / 320.0
        x, y = x0 + (x1 - x0) * part, y0 + (y1 - y0) * part
        side = 9 if k % 2 else -9
        length = max(1.0, float(np.hypot(x1 - x0, y1 - y0)))
        x, y = x - side * (y1 - y0) / length, y + side * (x1 - x0) / length
        colour = _DOTS.get(sign.kind, (110, 90, 150))
        draw.ellipse([x - 4, y - 4, x + 4, y + 4], fill=colour, outline=(255, 255, 255))
        _write(draw, x - 7 if k % 2 else x + 7, y, sign.lines[0], 10, colour, "rm" if k % 2 else "lm")


def _write(
    draw: ImageDraw.ImageDraw, x: float, y: float, text: str, size: int, colour: tuple[int, int, int], anchor: str
) -> None:
    draw.text(
        (round(x), round(y)), text, font=font(size, is_cjk(text)), fill=colour, anchor=anchor,
        stroke_width=2, stroke_fill=(255, 255, 255),
    )  # fmt: skip


def _is_close(view: View, across: float, down: float) -> bool:
    return -_PAD_PX < across < view.width + _PAD_PX and -_PAD_PX < down < view.height + _PAD_PX


def _towns(cities: Gazetteer, view: View) -> list[tuple[float, float, str, int]]:
    """(across, down, name, people) of the towns named on a view: each the largest of its cell and the cells around."""
    if view.zoom < 3:
        return []
    west, south, east, north = view.box(_PAD_PX + 2 * _CELL[0])
    inside = (cities.lat >= south) & (cities.lat <= north) & (cities.population >= _LEAST.get(view.zoom, 0))
    inside &= (cities.lon - west) % 360.0 <= east - west
    rows = np.flatnonzero(inside)
    if not len(rows):
        return []
    across, down = view.pixel(cities.lat[rows], cities.lon[rows])
    cell = np.stack([(across + view.left) // _CELL[0], (down + view.top) // _CELL[1]], axis=1).astype(np.int64)
    order = np.lexsort((cities.ids[rows], -cities.population[rows]))
    best: dict[tuple[int, int], int] = {}
    for rank, k in enumerate(order):
        best.setdefault((int(cell[k, 0]), int(cell[k, 1])), rank)
    named = []
    for (i, j), rank in best.items():
        if any(best.get((i + a, j + b), len(rows)) < rank for a in (-1, 0, 1) for b in (-1, 0, 1)):
            continue
        k = int(order[rank])
        if _is_close(view, float(across[k]), float(down[k])):
            row = int(rows[k])
            named.append((float(across[k]), float(down[k]), cities.names(row)[0], int(cities.population[row])))
    return named


@lru_cache(maxsize=1)
def _middles(cities: Gazetteer) -> dict[str, tuple[float, float]]:
    """A point well inside each country: the town nearest to the middle of its towns."""
    found = {}
    for iso2 in np.unique(cities.country):
        rows = np.flatnonzero(cities.country == iso2)
        lat, lon = cities.lat[rows], cities.lon[rows]
        east = (lon - lon[0] + 180.0) % 360.0 - 180.0
        away = (lat - lat.mean()) ** 2 + (east - east.mean()) ** 2
        k = int(np.argmin(away))
        found[str(iso2)] = (float(lat[k]), float(lon[k]))
    return found


@lru_cache(maxsize=512)
def _is_large(cities: Gazetteer, iso2: str) -> bool:
    rows = cities.country == iso2
    return bool(np.ptp(cities.lat[rows]) * np.ptp(cities.lon[rows]) > 120) if rows.any() else False
