"""Street maps: land and water, woods and towns, roads, the streets that have panoramas, and names."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from infra.offline.maps.ground import countries_of, ground_width_px, is_near, land_of, near_ground
from infra.offline.maps.labels import draw_labels
from infra.offline.maps.streets import street_lines
from infra.offline.maps.view import View
from infra.offline.scenes.city import avenue_m, city_share, street_m
from infra.offline.scenes.land import PLANTS, SNOW, WATER
from infra.offline.world import World

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
