"""Houses along the street, in the style of the region."""

from dataclasses import dataclass

import numpy as np

from infra.offline.place import Place
from infra.offline.render.canvas import Canvas, Colour, along


@dataclass(frozen=True)
class Style:
    """Colours and shapes of a region's houses."""

    walls: tuple[Colour, ...]
    roofs: tuple[Colour, ...]
    pitched: float  # share of pitched roofs
    floors: tuple[int, int]  # fewest and most
    window: Colour
    frame: Colour


# style | walls | roofs | share of pitched roofs | floors | window glass | window frame
_ROWS = """
nordic|962822 e2ce96 eceae2 5c7078|403e40 5c3228|0.9|1-3|3a4858|fafaf8
brick|8e4a38 a05c44 784234 beaa92|4a4446 6e3e30|0.85|2-3|3a4858|f6f6f2
plaster|ecdeba e2c496 d6d0c4 c8d6be f0ece2|a84e32 8c422e 605450|0.85|2-4|3a4858|eeece6
mediterranean|f6f0e2 e8c084 dea070 f0d8aa|be6842 b05c3a|0.6|2-4|40544a|4a6e54
block|bcb8b0 cec4ac acb2ba d6cec4|6e6e70|0.15|4-8|3a4858|e2e2e0
wood|e2e4e0 aabac4 cebea0 96a08c ece6d2|565252 706054|0.75|1-2|3a4858|fcfcfa
asian|cec8be e4e0d6 b0aca8 beb09e|464e5c 56565a|0.45|2-4|4a5660|c4c6c8
chinese|d6cec2 c4beb8 e2d8c8 b6a092|787474|0.1|4-9|485c6a|d2d4d6
tropical|ecdebe bed6ce f4e8d6 d6b296|b06040 78828c|0.55|1-3|3c464a|d6be96
indian|ecc496 aac8d6 eee0b4 d6a0a0 c4cea0|b0aaa0|0.08|1-4|424246|785a3c
desert|dec8a0 e8d6b4 d0b892 f0e4cc|ceba96|0.02|1-4|46423e|a08260
african|cea074 e4ceaa b4805c d6be96|967868 848a92|0.5|1-2|3a3836|6e5642
latin|f0ba5a 60a8b4 dc6e60 f6e2aa 8cb878|b0603e 969492|0.35|1-3|3e4248|f0eadc
"""


def _colour(text: str) -> Colour:
    return int(text[0:2], 16), int(text[2:4], 16), int(text[4:6], 16)


def _parse(row: str) -> tuple[str, Style]:
    name, walls, roofs, pitched, floors, window, frame = row.split("|")
    low, high = floors.split("-")
    return name, Style(
        walls=tuple(_colour(text) for text in walls.split()),
        roofs=tuple(_colour(text) for text in roofs.split()),
        pitched=float(pitched),
        floors=(int(low), int(high)),
        window=_colour(window),
        frame=_colour(frame),
    )


STYLES: dict[str, Style] = dict(_parse(row) for row in _ROWS.strip().splitlines())


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
            wall = style.walls[int(rng.integers(len(style.walls)))]
            roof = style.roofs[int(rng.integers(len(style.roofs)))]
            pitched = bool(rng.random() < style.pitched)
            floors = int(rng.integers(style.floors[0], style.floors[1] + 1))
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

    def front(low: float, high: float, colour: Colour, brightness: float) -> None:
        canvas.polygon(along(x0, low, high, house.z0, house.z1), shade(colour, brightness))

    front(0, top, house.wall, light[0])
    if not house.pitched:
        front(top - 0.1, ridge, house.roof, light[0])
    front(0, 0.5, house.wall, light[0] * 0.72)
    for floor in range(1, house.floors):
        y = floor * FLOOR_M + 0.35
        front(y, y + 0.14, house.wall, light[0] * 0.86)
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
        panes = house.z0 + (np.arange(columns) + 0.5) * step
        glass = _rectangles(x, np.full(columns, 0.55), np.full(columns, 2.55), panes, step * 0.44)
        canvas.quads(glass, [shade((74, 92, 104), light)])
    canvas.quads(_rectangles(x, np.array([0.0]), np.array([2.15]), np.array([door]), 0.5), [shade((96, 66, 46), light)])


def _rectangles(x: float, low: np.ndarray, high: np.ndarray, z: np.ndarray, half: float) -> np.ndarray:
    """(n, 4, 3) upright rectangles on the plane at x."""
    full = np.full_like(z, x)
    return np.stack(
        [np.stack([full, low, z - half], 1), np.stack([full, high, z - half], 1),
         np.stack([full, high, z + half], 1), np.stack([full, low, z + half], 1)], axis=1,
    )  # fmt: skip
