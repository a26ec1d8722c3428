"""Trees, poles, cars and monuments: what stands and drives on a street."""

from itertools import pairwise

import numpy as np

from infra.offline.render.buildings import shade
from infra.offline.render.canvas import Canvas, Colour, across, along, level

LEAVES: dict[str, tuple[Colour, ...]] = {
    "arid": ((120, 128, 74), (142, 140, 90)), "tropical": ((52, 104, 40), (74, 130, 50)),
    "mediterranean": ((92, 108, 66), (112, 124, 84)), "temperate": ((66, 112, 46), (88, 132, 58)),
    "boreal": ((40, 76, 50), (54, 88, 58)), "polar": ((110, 116, 90), (128, 130, 104)),
}  # fmt: skip
CAR_COLOURS: tuple[Colour, ...] = (
    (226, 228, 230), (40, 42, 46), (150, 154, 160), (150, 26, 30), (34, 66, 128), (196, 190, 172), (40, 90, 66),
)  # fmt: skip


def draw_tree(canvas: Canvas, climate: str, x: float, z: float, size: float, rng: np.random.Generator) -> None:
    """A tree of the climate: palm, conifer, cypress, broadleaf or dry shrub."""
    light, dark = LEAVES[climate][1], LEAVES[climate][0]
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
