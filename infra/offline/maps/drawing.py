"""Street maps and satellite pictures: ground, roads, the streets that have panoramas, side streets, and names."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw

from infra.offline.facts import countries
from infra.offline.gazetteer import Gazetteer
from infra.offline.maps.ground import countries_of, far_colour, ground_width_px, is_near, land_of, near_ground
from infra.offline.maps.view import View
from infra.offline.place import point_along
from infra.offline.render.signs import font, is_cjk
from infra.offline.scenes.ground import PLANTS, SNOW, WATER
from infra.offline.scenes.towns import avenue_m, city_share, street_m
from infra.offline.side_streets import Street, map_point
from infra.offline.world import World

LENGTH_M = 320.0
WIDEST_DEG = 0.2  # a view this high shows side streets
# Smallest towns named, by zoom.
_LEAST = {3: 6_000_000, 4: 2_500_000, 5: 900_000, 6: 350_000, 7: 140_000, 8: 50_000, 9: 18_000, 10: 6_000, 11: 2_000}
_CELL = (130, 34)  # pixels: of towns so close together only the largest is named
_PAD_PX = 150
_SHOPS_FROM, _NAMES_FROM = 16, 15
_DOTS = {"bakery": (196, 120, 40), "pharmacy": (30, 140, 70), "market": (60, 90, 190), "restaurant": (190, 60, 60)}
SEA, LAND, FIELD, WOOD, TOWN, ICE = (
    (170, 211, 223), (243, 240, 233), (236, 238, 218), (200, 222, 184), (226, 222, 216), (236, 242, 247),
)  # fmt: skip
WHITE, CASING, AVENUE, MAIN, BORDER = (
    (255, 255, 255),
    (205, 198, 190),
    (250, 236, 184),
    (247, 201, 120),
    (158, 138, 160),
)
_STREETS_FROM, _AVENUES_FROM, _SIGNED_FROM = 13, 11, 14
_FINER = 2  # lines are drawn larger and reduced, for smooth edges


@dataclass(frozen=True)
class StreetLine:
    """One street: what it is, and its two ends in pixels of the view."""

    place: Street
    ends: list[tuple[float, float]]


def street_lines(world: World, view: View) -> list[StreetLine]:
    """Streets of places on or near a view, in the order of the world, then side streets of the towns there."""
    lines = []
    west, south, east, north = view.box(48)
    lat, lon = view.middle
    side = world.side_streets.near(lat, lon) if north - south < WIDEST_DEG else []
    streets: list[Street] = [world.place(i) for i in world.places_near(west, south, east, north)]
    for place in [*streets, *side]:
        reach = 2 * LENGTH_M / 111_195.0
        at = map_point(place)
        if not (south - reach <= at[0] <= north + reach):
            continue
        ends_m = np.array([-LENGTH_M / 2, LENGTH_M / 2])
        across, down = view.pixel(*point_along(*at, place.bearing_deg, ends_m))
        pad = 64
        if (
            across.max() < -pad
            or across.min() > view.width + pad
            or down.max() < -pad
            or down.min() > view.height + pad
        ):
            continue
        lines.append(StreetLine(place, [(float(a), float(d)) for a, d in zip(across, down, strict=True)]))
    return lines


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
    middles = {}
    for iso2 in np.unique(cities.country):
        rows = np.flatnonzero(cities.country == iso2)
        lat, lon = cities.lat[rows], cities.lon[rows]
        east = (lon - lon[0] + 180.0) % 360.0 - 180.0
        away = (lat - lat.mean()) ** 2 + (east - east.mean()) ** 2
        k = int(np.argmin(away))
        middles[str(iso2)] = (float(lat[k]), float(lon[k]))
    return middles


@lru_cache(maxsize=512)
def _is_large(cities: Gazetteer, iso2: str) -> bool:
    rows = cities.country == iso2
    return bool(np.ptp(cities.lat[rows]) * np.ptp(cities.lon[rows]) > 120) if rows.any() else False


def draw_map(world: World, view: View, style: str) -> Image.Image:
    """The picture of a view: a "roadmap", or the "satellite" picture of the ground without clouds."""
    return draw_satellite(world, view) if style == "satellite" else draw_roadmap(world, view)


def draw_satellite(world: World, view: View) -> Image.Image:
    """The picture of a view from above."""
    if not is_near(view):
        return far_colour(world.seed, view)
    image = near_ground(world.seed, view).colour
    draw = ImageDraw.Draw(image)
    if view.zoom >= 15:
        for line in street_lines(world, view):
            draw.line(line.ends, fill=(84, 82, 80), width=ground_width_px(8.0, view, 2))
    return image


def draw_roadmap(world: World, view: View) -> Image.Image:
    """The street map of a view."""
    if is_near(view):
        image, roads = _near(world, view)
    else:
        image, roads = _far(view), []
    large = image.resize((view.width * _FINER, view.height * _FINER), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(large)
    _draw_roads(draw, view, roads)
    lines = street_lines(world, view) if view.zoom >= _SIGNED_FROM else []
    for colour, extra in ((CASING, 2), (WHITE, 0)):
        for line in lines:
            width = ground_width_px(9.0, view, 3) * _FINER + extra * _FINER
            draw.line([(x * _FINER, y * _FINER) for x, y in line.ends], fill=colour, width=width)
    image = large.resize((view.width, view.height), Image.Resampling.BOX)
    draw_labels(image, world, view, lines)
    return image


def _near(world: World, view: View) -> tuple[Image.Image, list[tuple[float, np.ndarray, np.ndarray]]]:
    near = near_ground(world.seed, view)
    dark = np.asarray(near.colour).astype(np.float32).sum(axis=-1) < 95
    picture = np.empty((view.height, view.width, 3), np.float32)
    picture[:] = LAND
    picture[near.kind == PLANTS] = FIELD
    picture[(near.kind == PLANTS) & dark] = WOOD
    picture[near.kind == SNOW] = ICE
    x, y = view.plane
    share = city_share(world.seed, x, y, near.urban)
    park = (near.kind == PLANTS) & (share > 0.5)
    picture += (np.array(TOWN) - picture) * (share * ~park)[..., None]
    picture[park] = WOOD
    if view.zoom >= _STREETS_FROM:
        half = max(5.0, 0.9 * view.px_m)
        _lay(picture, street_m(world.seed, x, y), half, view, share, WHITE)
    if view.zoom >= _AVENUES_FROM:
        half = max(11.0, 1.2 * view.px_m)
        _lay(picture, _true_m(avenue_m(world.seed, x, y), view), half, view, share, AVENUE)
    picture[near.kind == WATER] = SEA
    return Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8)), near.roads


def _true_m(about_m: np.ndarray, view: View) -> np.ndarray:
    """Metres to a line from values that only vanish on it: divided by their slope, else flat parts become lakes."""
    slope = np.zeros_like(about_m)
    for axis in (0, 1):
        step = np.abs(np.diff(about_m, axis=axis)) / view.px_m
        before = np.concatenate([step, np.take(step, [-1], axis)], axis)
        after = np.concatenate([np.take(step, [0], axis), step], axis)
        slope += np.maximum(before, after) ** 2
    return np.asarray(about_m / np.maximum(np.sqrt(slope), 0.05))


def _lay(
    picture: np.ndarray, away_m: np.ndarray, half_m: float, view: View, share: np.ndarray, colour: tuple[int, int, int]
) -> None:
    """Paints what lies within half a width of a line, with a thin casing, where there is a town."""
    for tone, half in ((CASING, half_m + 0.9 * view.px_m), (colour, half_m)):
        cover = np.clip((half - away_m) / view.px_m + 0.5, 0, 1) * (share > 0.5)
        picture += (np.array(tone) - picture) * cover[..., None]


def _far(view: View) -> Image.Image:
    number = countries_of(view)
    picture = np.empty((view.height, view.width, 3), np.float32)
    picture[:] = LAND
    lat, _ = view.degrees(np.zeros(view.height), np.arange(view.height) + 0.5)
    picture[(lat < -60) | (lat > 76)] = ICE
    border = np.zeros(number.shape, bool)
    for axis in (0, 1):
        other = np.roll(number, 1, axis)
        border |= (number != other) & (number > 0) & (other > 0)
    border[0], border[:, 0] = False, False
    picture[border] = BORDER
    picture = np.array(SEA) + (picture - np.array(SEA)) * land_of(view)[..., None]
    return Image.fromarray(picture.astype(np.uint8))


def _draw_roads(draw: ImageDraw.ImageDraw, view: View, roads: list[tuple[float, np.ndarray, np.ndarray]]) -> None:
    for casing in (True, False):
        for width_m, lat, lon in sorted(roads, key=lambda road: road[0]):
            least = 3.0 if width_m > 20 else 2.0 if width_m > 10 else 1.2
            if view.zoom < 11 and width_m < 10:
                continue
            across, down = view.pixel(lat, lon)
            if across.max() < 0 or across.min() > view.width or down.max() < 0 or down.min() > view.height:
                continue
            width = round(max(least, width_m / view.ground_m) * _FINER) + (2 * _FINER if casing else 0)
            colour = CASING if casing else MAIN if width_m > 20 else AVENUE if width_m > 10 else WHITE
            spots = [(float(a) * _FINER, float(d) * _FINER) for a, d in zip(across, down, strict=True)]
            draw.line(spots, fill=colour, width=width, joint="curve")
