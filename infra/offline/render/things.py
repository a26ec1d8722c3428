"""Houses in the style of the region, trees, poles, cars and monuments: what stands and drives on a street."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from infra.offline.data import read_table
from infra.offline.place import Place
from infra.offline.render.canvas import Canvas, Colour, across, along, colour, level

FLOOR_M = 3.1
CAR_COLOURS: tuple[Colour, ...] = (
    (226, 228, 230), (40, 42, 46), (150, 154, 160), (150, 26, 30), (34, 66, 128), (196, 190, 172), (40, 90, 66),
)  # fmt: skip


@dataclass(frozen=True)
class Style:
    """Colours and shapes of a region's houses."""

    walls: tuple[Colour, ...]
    roofs: tuple[Colour, ...]
    pitched: float  # share of pitched roofs
    floors: tuple[int, int]  # fewest and most
    window: Colour
    frame: Colour


def _style(row: dict[str, str]) -> Style:
    low, high = row["floors"].split("-")
    return Style(
        walls=tuple(colour(text) for text in row["walls"].split()),
        roofs=tuple(colour(text) for text in row["roofs"].split()),
        pitched=float(row["pitched"]),
        floors=(int(low), int(high)),
        window=colour(row["window"]),
        frame=colour(row["frame"]),
    )


STYLES = {row["style"]: _style(row) for row in read_table("building_styles.csv")}
LEAVES = {
    row["climate"]: (colour(row["dark_leaves"]), colour(row["light_leaves"])) for row in read_table("climates.csv")
}


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


def houses_along(
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


def draw_tree(canvas: Canvas, climate: str, x: float, z: float, size: float, rng: np.random.Generator) -> None:
    """A tree of the climate: palm, conifer, cypress, broadleaf or dry shrub."""
    dark, light = LEAVES[climate]
    form = rng.random()
    if climate == "tropical" and form < 0.6:
        _palm(canvas, x, z, size, light, rng)
    elif climate == "boreal" or (climate == "temperate" and form < 0.25):
        _conifer(canvas, x, z, size, dark, light)
    elif climate == "mediterranean" and form < 0.4:
        _column(canvas, x, z, size, dark, light, rng)
    elif climate in ("arid", "polar"):
        _blobs(canvas, x, z, 0.5 * size, 0.1, dark, light, rng)
    else:
        _blobs(canvas, x, z, size, 0.38 * size, dark, light, rng)


def _trunk(canvas: Canvas, x: float, z: float, height: float, half: float) -> None:
    # A trunk is as wide from every side: its width is laid across the line of sight.
    dx, dz = z - canvas.camera.z, -(x - canvas.camera.x)
    length = max(0.1, float(np.hypot(dx, dz)))
    dx, dz = dx / length * half, dz / length * half
    canvas.quads(
        np.array([[(x - dx, 0, z - dz), (x - dx, height, z - dz), (x + dx, height, z + dz), (x + dx, 0, z + dz)]]),
        [(94, 74, 56)],
    )


def _blobs(
    canvas: Canvas,
    x: float,
    z: float,
    size: float,
    trunk: float,
    dark: Colour,
    light: Colour,
    rng: np.random.Generator,
) -> None:
    if trunk > 0.2:
        _trunk(canvas, x, z, trunk + 0.2 * size, 0.045 * size)
    # Far trees need few leaves: single ones cannot be seen.
    count = int(np.clip(canvas.size_px((x, trunk, z), size) * 0.35, 12, 110))
    way = rng.normal(size=(count, 3))
    way *= (rng.random(count) ** 0.45 / np.linalg.norm(way, axis=1))[:, None]
    centres = np.array([x, trunk + 0.42 * size, z]) + way * np.array([0.3, 0.33, 0.3]) * size
    centres[:, 1] = np.maximum(centres[:, 1], 0.1)
    order = np.argsort(-np.hypot(centres[:, 0] - canvas.camera.x, centres[:, 2] - canvas.camera.z))
    radii = size * rng.uniform(0.05, 0.085, count) * max(1.0, (60 / count) ** 0.5)
    # Lit from above, dark below and inside.
    bright = 0.78 + 0.3 * way[:, 1] + rng.normal(0, 0.06, count)
    tones = [shade(dark if k % 3 else light, float(b)) for k, b in enumerate(bright)]
    canvas.discs(centres[order], radii[order], [tones[k] for k in order])


def _conifer(canvas: Canvas, x: float, z: float, size: float, dark: Colour, light: Colour) -> None:
    _trunk(canvas, x, z, 0.2 * size, 0.04 * size)
    for k in range(5):
        low, high, half = size * (0.12 + 0.16 * k), size * (0.42 + 0.17 * k), size * (0.24 - 0.038 * k)
        canvas.quads(
            np.array([[(x - half, low, z), (x, high, z), (x, high, z), (x + half, low, z)]]),
            [shade(dark, 0.9 + 0.07 * k)],
        )
        canvas.quads(
            np.array([[(x, low, z - half), (x, high, z), (x, high, z), (x, low, z + half)]]),
            [shade(light, 0.8 + 0.05 * k)],
        )


def _column(
    canvas: Canvas, x: float, z: float, size: float, dark: Colour, light: Colour, rng: np.random.Generator
) -> None:
    for k in range(14):
        height = size * (0.08 + 0.065 * k)
        radius = size * 0.1 * (1.0 - abs(k / 13 - 0.4))
        canvas.disc(
            (x, height, z), radius, shade(dark if k % 2 else light, 0.7 + 0.2 * float(rng.random())), squash=1.6
        )


def _palm(canvas: Canvas, x: float, z: float, size: float, leaf: Colour, rng: np.random.Generator) -> None:
    lean = float(rng.normal(0, 0.5))
    height = size * 0.85
    heights = np.linspace(0, 1, 6)
    spine = np.stack([x + lean * heights**2, height * heights, np.full(6, z)], axis=1)
    canvas.line(spine, (124, 104, 80), 0.3)
    crown = spine[-1]
    for angle in np.linspace(0, 2 * np.pi, 13)[:-1] + rng.random():
        out = np.linspace(0, 1, 5)[:, None]
        reach = size * 0.34
        frond = crown + np.hstack(
            [np.cos(angle) * reach * out, reach * (0.35 * out - 0.75 * out**2), np.sin(angle) * reach * out]
        )
        canvas.line(frond, shade(leaf, 0.75 + 0.4 * float(rng.random())), 0.28)


def draw_pole(canvas: Canvas, x: float, z: float, kind: str) -> None:
    """A street lamp ("lamp") or a wooden pole for wires ("wires")."""
    height = 7.2 if kind == "lamp" else 8.6
    colour = (120, 124, 128) if kind == "lamp" else (104, 84, 66)
    canvas.line(np.array([(x, 0, z), (x, height / 2, z), (x, height, z)]), colour, 0.14 if kind == "lamp" else 0.26)
    if kind == "lamp":
        arm = -np.sign(x) * 1.6
        canvas.line(np.array([(x, height, z), (x + arm, height + 0.25, z)]), colour, 0.1)
        canvas.disc((x + arm, height + 0.2, z), 0.16, (226, 226, 214), squash=0.5)
    else:
        canvas.line(np.array([(x - 0.9, height - 0.5, z), (x + 0.9, height - 0.5, z)]), colour, 0.14)


def draw_wires(canvas: Canvas, x: float, zs: list[float]) -> None:
    """Sagging wires from pole to pole."""
    for start, end in pairwise(zs):
        part = np.linspace(0, 1, 9)
        sag = 8.1 - 0.9 * 4 * part * (1 - part)
        for shift in (-0.8, 0.8):
            canvas.line(
                np.stack([np.full(9, x + shift), sag, start + (end - start) * part], axis=1), (46, 46, 48), 0.03
            )


def draw_car(canvas: Canvas, x: float, z: float, direction: float, colour: Colour, light: float) -> None:
    """A car on the road at (x, z), driving towards +z (direction 1) or -z (-1): red lamps behind, white in front."""
    half_w, half_l = 0.88, 2.1
    camera = canvas.camera
    near_z = z - half_l if camera.z < z else z + half_l
    near_x = x - half_w if camera.x < x else x + half_w
    body, glass = shade(colour, light), shade((44, 54, 64), light + 0.1)
    canvas.quads(np.array([level(x - half_w, x + half_w, 0.04, z - half_l, z + half_l)]), [(44, 44, 46)])
    beside = abs(camera.x - x) > half_w  # from right behind or before, the sides cannot be seen
    if beside:
        canvas.polygon(along(near_x, 0.3, 0.95, z - half_l, z + half_l), shade(body, 0.86))
        upper_x = near_x * 0.94 + x * 0.06
        cabin = [(near_x, 0.95, z - 1.5), (upper_x, 1.48, z - 0.95), (upper_x, 1.48, z + 0.95), (near_x, 0.95, z + 1.5)]
        canvas.polygon(cabin, glass)
    canvas.polygon(level(x - half_w * 0.9, x + half_w * 0.9, 1.48, z - 0.95, z + 0.95), shade(body, 1.08))
    face_z, top_z, top_w = z + (near_z - z) * 0.72, z + (near_z - z) * 0.46, half_w * 0.88
    window = [
        (x - half_w, 0.95, face_z),
        (x - top_w, 1.46, top_z),
        (x + top_w, 1.46, top_z),
        (x + half_w, 0.95, face_z),
    ]
    canvas.polygon(window, glass)
    bonnet = [
        (x - half_w, 0.95, face_z),
        (x + half_w, 0.95, face_z),
        (x + half_w, 0.9, near_z),
        (x - half_w, 0.9, near_z),
    ]
    canvas.polygon(bonnet, shade(body, 1.05))
    canvas.polygon(across(x - half_w, x + half_w, 0.3, 0.92, near_z), body)
    for wheel in (z - 1.3, z + 1.3) if beside else ():
        canvas.disc((near_x, 0.32, wheel), 0.32, (24, 24, 26))
        canvas.disc((near_x, 0.32, wheel), 0.16, (150, 150, 152))
    shows_back = (near_z < z) == (direction > 0)
    lamps = [across(x + s * 0.6 - 0.18, x + s * 0.6 + 0.18, 0.62, 0.82, near_z) for s in (-1, 1)]
    canvas.quads(np.array(lamps), [(206, 30, 30) if shows_back else (250, 248, 226)])
    canvas.quads(np.array([across(x - 0.26, x + 0.26, 0.44, 0.56, near_z)]), [(236, 236, 226)])


def draw_monument(canvas: Canvas, x: float, z: float, form: int) -> None:
    """The city's landmark: an obelisk, a domed hall or a twin-towered gate, far taller than the houses."""
    stone, shadow, gold = (214, 204, 182), (172, 162, 142), (214, 172, 60)
    if form == 0:
        canvas.polygon(across(x - 5, x + 5, 0, 2, z), shadow)
        canvas.polygon([(x - 2, 2, z), (x - 1.1, 34, z), (x, 38, z), (x + 1.1, 34, z), (x + 2, 2, z)], stone)
        canvas.polygon([(x, 2, z), (x, 38, z), (x + 1.1, 34, z), (x + 2, 2, z)], shadow)
    elif form == 1:
        canvas.polygon(across(x - 12, x + 12, 0, 12, z), stone)
        for k in range(-5, 6):
            canvas.polygon(across(x + 2.2 * k - 0.45, x + 2.2 * k + 0.45, 0, 10, z - 0.1), shadow)
        bow = np.linspace(0, np.pi, 24)
        canvas.polygon(np.stack([x + 8 * np.cos(bow), 12 + 11 * np.sin(bow), np.full(24, z)], axis=1), gold)
        canvas.line(np.array([(x, 23, z), (x, 29, z)]), gold, 0.6)
    else:
        for at in (x - 9, x + 9):
            canvas.polygon([(at - 3, 0, z), (at - 3, 26, z), (at, 33, z), (at + 3, 26, z), (at + 3, 0, z)], stone)
            canvas.polygon([(at, 0, z), (at, 33, z), (at + 3, 26, z), (at + 3, 0, z)], shadow)
        canvas.polygon(across(x - 7, x + 7, 12, 16, z), stone)
