"""Houses along the street, in the style of the region."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infra.offline.place import Place
from infra.offline.render.canvas import Canvas, Colour
from infra.offline.render.styles import STYLES, Style

FLOOR_M = 3.1


@dataclass(frozen=True)
class House:
    """One house: on side -1 or 1, from z0 to z1, its front at distance front_m from the road's middle."""

    side: float
    z0: float
    z1: float
    front_m: float
    depth_m: float
    floors: int
    wall: Colour
    roof: Colour
    pitched: bool
    shop: int | None  # index of the place's shop in this house

    @property
    def is_shop(self) -> bool:
        """Whether the ground floor is a shop front."""
        return self.shop is not None

    @property
    def height_m(self) -> float:
        """Height of the eaves."""
        return self.floors * FLOOR_M + 0.5


def line_up(
    place: Place, front_m: float, shop_spots: list[tuple[float, float]], rng: np.random.Generator
) -> list[House]:
    """Houses on both sides; every shop spot (side, z) gets a house with a shop front."""
    style = STYLES[place.building_style]
    spacing = {"centre": (0.0, 0.6), "suburb": (4.0, 12.0), "rural": (26.0, 70.0)}[place.setting]
    houses = []
    for side in (-1.0, 1.0):
        spots = sorted((z, k) for k, (s, z) in enumerate(shop_spots) if s == side)
        z = -70.0
        while z < 150.0:
            width = float(rng.uniform(9.0, 15.0))
            gap = float(rng.uniform(*spacing))
            wall, roof = (
                style.walls[int(rng.integers(len(style.walls)))],
                style.roofs[int(rng.integers(len(style.roofs)))],
            )
            pitched, floors = (
                bool(rng.random() < style.pitched),
                int(rng.integers(style.floors[0], style.floors[1] + 1)),
            )
            shop: int | None = None
            start = z + gap
            if spots and spots[0][0] < z + gap + width:  # a shop decides where its house stands
                middle, shop = spots.pop(0)
                start = max(z, middle - width / 2)
            jitter = float(rng.uniform(0, 0.8)) if place.setting != "centre" else 0.0
            front = front_m if shop is not None else front_m + jitter
            houses.append(House(side, start, start + width, front, 9.0, floors, wall, roof, pitched, shop))
            z = start + width
    return houses


def shade(colour: Colour, light: float) -> Colour:
    """A colour under more or less light."""
    red, green, blue = (max(0, min(255, round(c * light))) for c in colour)
    return red, green, blue


def draw_house(
    canvas: Canvas, house: House, place: Place, light: tuple[float, float, float], rng: np.random.Generator
) -> None:
    """One house: far faces first, then the front with its openings; `light` is the brightness of (front, near, far)."""
    style = STYLES[place.building_style]
    x0, x1 = house.side * house.front_m, house.side * (house.front_m + house.depth_m)
    top, ridge = house.height_m, house.height_m + (2.6 if house.pitched else 0.35)
    middle = (x0 + x1) / 2
    camera_z = canvas.camera.z
    for z, brightness in ((house.z0, light[1]), (house.z1, light[2])):
        visible = camera_z < z if z == house.z0 else camera_z > z
        if not visible:
            continue
        outline = [(x0, 0, z), (x0, top, z), (x1, top, z), (x1, 0, z)]
        if house.pitched:
            outline = [(x0, 0, z), (x0, top, z), (middle, ridge, z), (x1, top, z), (x1, 0, z)]
        canvas.polygon(outline, shade(house.wall, brightness))
    if house.pitched:
        eave, low, start, end = x0 - house.side * 0.3, top - 0.1, house.z0 - 0.2, house.z1 + 0.2
        slope = [(eave, low, start), (middle, ridge, start), (middle, ridge, end), (eave, low, end)]
        canvas.polygon(slope, shade(house.roof, light[0]))
    canvas.polygon(
        [(x0, 0, house.z0), (x0, top, house.z0), (x0, top, house.z1), (x0, 0, house.z1)], shade(house.wall, light[0])
    )
    if not house.pitched:
        canvas.polygon(
            [(x0, top - 0.1, house.z0), (x0, ridge, house.z0), (x0, ridge, house.z1), (x0, top - 0.1, house.z1)],
            shade(house.roof, light[0]),
        )
    canvas.polygon(
        [(x0, 0, house.z0), (x0, 0.5, house.z0), (x0, 0.5, house.z1), (x0, 0, house.z1)],
        shade(house.wall, light[0] * 0.72),
    )
    for floor in range(1, house.floors):
        y = floor * FLOOR_M + 0.35
        canvas.polygon(
            [(x0, y, house.z0), (x0, y + 0.14, house.z0), (x0, y + 0.14, house.z1), (x0, y, house.z1)],
            shade(house.wall, light[0] * 0.86),
        )
    _draw_openings(canvas, house, style, light[0], rng)


def _draw_openings(canvas: Canvas, house: House, style: Style, light: float, rng: np.random.Generator) -> None:
    span = house.z1 - house.z0
    columns = max(2, int(span / 2.6))
    step = span / columns
    lower = 1 if house.is_shop else 0
    floor, column = np.meshgrid(np.arange(lower, house.floors), np.arange(columns), indexing="ij")
    z = house.z0 + (column.ravel() + 0.5) * step
    y = floor.ravel() * FLOOR_M + 1.1
    x = house.side * (house.front_m - 0.02)
    canvas.quads(_rectangles(x, y - 0.1, y + 1.55, z, 0.68), [shade(style.frame, light)])
    lit = rng.random(len(z))
    tones = [shade(style.window, (0.8 + 0.5 * float(v)) * light) for v in lit]
    canvas.quads(_rectangles(x, y, y + 1.45, z, 0.56), tones)
    door = house.z0 + (int(rng.integers(columns)) + 0.5) * step
    if house.is_shop:
        glass = np.arange(columns)
        panes = house.z0 + (glass + 0.5) * step
        canvas.quads(
            _rectangles(x, np.full(columns, 0.55), np.full(columns, 2.55), panes, step * 0.44),
            [shade((74, 92, 104), light)],
        )
    canvas.quads(_rectangles(x, np.array([0.0]), np.array([2.15]), np.array([door]), 0.5), [shade((96, 66, 46), light)])


def _rectangles(x: float, low: np.ndarray, high: np.ndarray, z: np.ndarray, half: float) -> np.ndarray:
    """(n, 4, 3) upright rectangles on the plane at x."""
    full = np.full_like(z, x)
    return np.stack(
        [np.stack([full, low, z - half], 1), np.stack([full, high, z - half], 1),
         np.stack([full, high, z + half], 1), np.stack([full, low, z + half], 1)], axis=1,
    )  # fmt: skip
