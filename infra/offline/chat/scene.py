"""The scene in numbers, from pixels alone: light, sharpness, colours, the road's lines and side, landmarks.

The ground is laid flat, as seen from above, on the assumptions any street-view reader makes: an upright camera on a
car, level ground, and (in a panorama) the direction of travel in the middle. A car drives in the middle of its own
lane, so the road reaches farther on the side of oncoming traffic, and the line between is the centre line.
"""

import bisect
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from infra.offline.chat.protocol import is_panorama

Floats = NDArray[np.float32]

# Lengths are in camera heights, since a picture alone has no scale.
REACH, STEP = 5.0, 0.02
AHEAD = np.concatenate([np.linspace(-3.2, -0.5, 40), np.linspace(0.5, 3.2, 40)])
ASPHALT_CHANGE = 16.0  # a colour step that ends the asphalt, of 255
LINE_RISE = 26.0  # how much brighter than its surroundings a line is
UNSEEN = (255.0, 0.0, 255.0)  # no road has this colour
LINE_WIDTHS = (2, 4, 7)  # in STEPs
# What the plates at the foot of such things say.
_WORDS = re.compile(r"\b(memorial|denkmal|obelis|cathedral|pomnik)|MONU|NUMENT|纪念碑|記念碑|紀念碑", re.IGNORECASE)
AHEAD_DEGREES = 11.0
# What stands high over the road: between which degrees over the horizon, from how many degrees wide, of which colours.
# Houses end lower where a street runs away; an obelisk or a gate does not, and a dome sits broad above a hall.
_STRUCTURES: tuple[tuple[str, float, float, float, Callable[[Any, Any, Any], Any]], ...] = (
    (
        "a monument towers over the street ahead", 23.0, 31.0, 1.2,
        lambda red, green, blue: (red - blue > 18) & (red > 120) & (green > blue + 6) & (red >= green),
    ),
    (
        "a golden dome closes the street ahead", 17.0, 21.0, 5.0,
        lambda red, green, blue: (red > 150) & (red - blue > 90) & (green > 0.7 * red) & (green < 0.9 * red),
    ),
)  # fmt: skip
WORK_PX = 512  # the long side at which colours are measured


def grade(share: float, words: str, *limits: float) -> str:
    """The word of a scale (`a b c`) that a share falls on; each but the last ends below its limit."""
    return words.split()[bisect.bisect_right(limits, share)]


@dataclass(frozen=True)
class Road:
    """What the road shows; None where it is not seen."""

    centre: str | None = None  # colour of the centre line
    edge: str | None = None
    side: str | None = None  # left | right, on which traffic keeps
    side_confidence: float = 0.0


def read_road(image: Image.Image, panorama: bool) -> Road:
    """What the road shows, or a Road of Nones where there is none to see."""
    pixels = np.asarray(image)
    height, width = pixels.shape[:2]
    across = np.arange(-REACH, REACH, STEP)
    # Colours of the ground, by distance along and offset across.
    if panorama:
        z, x = np.meshgrid(AHEAD, across, indexing="ij")
        row = height / 2 + np.arctan(1 / np.hypot(x, z)) * height / math.pi
        column = width / 2 + np.arctan2(x, z) * width / (2 * math.pi)
        return _judge(_flatten(pixels, column, row, cv2.BORDER_WRAP))
    point = vanishing_point(image)
    if point is None:
        return Road()
    # Lines along the road all run to the vanishing point, so each offset is one slope.
    rows = np.linspace(point[1] + (height - point[1]) * 0.2, height - 2, 80)
    row, slope = np.meshgrid(rows, across, indexing="ij")
    column = point[0] + slope * (row - point[1])
    flat = _flatten(pixels, column, row, cv2.BORDER_CONSTANT)
    flat[(column < 0) | (column > width - 1)] = np.nan
    return _judge(flat)


def _flatten(pixels: NDArray[np.uint8], column: NDArray[np.float64], row: NDArray[np.float64], border: int) -> Floats:
    at = column.astype(np.float32), row.astype(np.float32)
    flat = cv2.remap(pixels, *at, cv2.INTER_LINEAR, borderMode=border, borderValue=UNSEEN)
    return np.asarray(flat, dtype=np.float32)


def vanishing_point(image: Image.Image) -> tuple[float, float] | None:
    """(column, row) where the road's lines meet, or None where no two lines do."""
    scale = 800 / max(image.size)
    small = np.asarray(image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BOX))
    height, width = small.shape[:2]
    grey = cv2.cvtColor(small, cv2.COLOR_RGB2GRAY)
    edges = cv2.Canny(grey, 60, 140)
    edges[: int(height * 0.52)] = 0
    segments = cv2.HoughLinesP(edges, 1, np.pi / 360, 60, minLineLength=height // 9, maxLineGap=12)
    if segments is None:
        return None
    x1, y1, x2, y2 = segments.reshape(-1, 4).astype(float).T
    steep = (np.abs(y2 - y1) > 0.06 * np.abs(x2 - x1)) & (np.abs(y2 - y1) > 8)
    x, y, slope = x1[steep], y1[steep], ((x2 - x1)[steep] / (y2 - y1)[steep])
    length = np.hypot(x2 - x1, y2 - y1)[steep]
    # Where any two lines meet that are not nearly parallel; of these points the one that most lines run through.
    first, second = np.triu_indices(len(x), 1)
    apart = np.abs(slope[first] - slope[second]) >= 0.25
    a, b = first[apart], second[apart]
    row = (x[b] - x[a] + slope[a] * y[a] - slope[b] * y[b]) / (slope[a] - slope[b])
    column = x[a] + slope[a] * (row - y[a])
    likely = (height * 0.3 < row) & (row < height * 0.66) & (-0.5 * width < column) & (column < 1.5 * width)
    row, column = row[likely], column[likely]
    away = np.abs(x + slope * (row[:, None] - y) - column[:, None]) / np.hypot(1, slope)
    votes = np.where((away < 5).sum(axis=1) >= 3, (away < 5) @ length, 0.0)
    if not votes.any():
        return None
    best = int(np.argmax(votes))
    return float(column[best] / scale), float(row[best] / scale)


def _judge(flat: Floats) -> Road:
    across = np.arange(-REACH, REACH, STEP)
    flat[:, np.isnan(flat).all(axis=(0, 2))] = UNSEEN
    profile = np.nanmedian(flat, axis=0)
    middle = np.abs(across) < 0.28
    asphalt = np.nanmedian(profile[middle], axis=0)
    if np.isnan(asphalt).any() or asphalt.max() - asphalt.min() > 26 or not 45 < asphalt.mean() < 165:
        return Road()
    lines = _lines(flat, across)
    left = _extent(profile[::-1], across[::-1], asphalt)
    right = _extent(profile, across, asphalt)
    if min(left, right) < 0.3 or max(left, right) > REACH - 0.2:
        return Road()
    centre, edge = _colours(lines, left, right)
    confidence = float(np.clip((max(left, right) / min(left, right) - 1.15) / 1.2, 0.0, 0.97))
    if confidence < 0.15:
        return Road(centre, edge)
    return Road(centre, edge, "right" if left > right else "left", confidence)


def _extent(profile: Floats, across: NDArray[np.float64], asphalt: Floats) -> float:
    """How far the asphalt reaches on one side; a painted line inside it does not end it."""
    outward = np.abs(across[len(across) // 2 :])
    alike = np.abs(profile[len(across) // 2 :] - asphalt).max(axis=1) < ASPHALT_CHANGE
    patience = round(0.28 / STEP)
    reached = np.flatnonzero(alike)
    # The asphalt ends before the first gap that is longer than a line is wide.
    gaps = np.flatnonzero(np.diff(reached, prepend=-1) > patience + 1)
    last = reached[: gaps[0]] if len(gaps) else reached
    return float(outward[last[-1]]) if len(last) else 0.0


def _lines(flat: Floats, across: NDArray[np.float64]) -> list[tuple[float, Floats]]:
    """(offset, colour) of bright stripes along the road, broken ones included."""
    bright = flat.max(axis=2)
    best = np.zeros(bright.shape, np.float32)
    for half in LINE_WIDTHS:
        away = half + 6
        sides = np.maximum(np.roll(bright, away, axis=1), np.roll(bright, -away, axis=1))
        best = np.maximum(best, bright - sides)
    best[np.isnan(best)] = 0
    strength = np.percentile(best, 80, axis=0)
    strength[:12], strength[-12:] = 0, 0
    lines = []
    for at in range(12, len(across) - 12):
        window = strength[at - 8 : at + 9]
        if strength[at] > LINE_RISE and strength[at] >= window.max():
            rows = best[:, at] > LINE_RISE
            lines.append((float(across[at]), np.nanmedian(flat[rows, at], axis=0).astype(np.float32)))
    return lines


def _colours(lines: list[tuple[float, Floats]], left: float, right: float) -> tuple[str | None, str | None]:
    """Colours of the line inside the asphalt (the centre line) and of the lines at its ends."""
    centre, edge = None, None
    for offset, (red, green, blue) in lines:
        is_yellow = bool(red > 110 and red - blue > 45 and green > blue)
        colour = pick({"yellow": is_yellow, "white": bool(min(red, green, blue) > 120)})
        place = (left + offset if left > right else right - offset) / (left + right)  # 0 at the far edge, 1 at the near
        if 0.35 < place < 0.66:
            centre = centre or colour
        elif -0.02 < place < 0.2 or 0.8 < place < 1.02:
            edge = edge or colour
    return centre, edge


def named_landmark(texts: Iterable[str]) -> str | None:
    """The plate that names a landmark, if one is readable."""
    return next((f"a plate reads '{text}'" for text in texts if _WORDS.search(text)), None)


def tower_ahead(image: Image.Image, panorama: bool) -> str | None:
    """A pale or golden structure standing high over the road ahead; only a panorama shows enough sky to tell."""
    width, height = image.size
    half = int(width * AHEAD_DEGREES / 360)
    for what, low, high, degrees, is_of in _STRUCTURES if panorama else ():
        top, bottom = (int(height * (0.5 - above / 180)) for above in (high, low))
        view = np.asarray(image.crop((width // 2 - half, top, width // 2 + half, bottom)), dtype=np.float32)
        # Columns that it fills mostly; what fills the whole view is none.
        filled = is_of(*np.moveaxis(view, 2, 0)).mean(axis=0) > 0.5
        longest = int(np.max(np.diff(_runs(filled)), initial=0))
        if longest * 360 / width >= degrees and longest < 0.9 * len(filled):
            return what
    return None


def _runs(line: NDArray[np.bool_]) -> NDArray[np.intp]:
    """(start, end) of each run of what holds."""
    return np.flatnonzero(np.diff(line, prepend=False, append=False)).reshape(-1, 2)


@dataclass(frozen=True, kw_only=True)
class Scene(Road):
    view: str
    brightness: float  # mean luminance, 0..1
    sharpness: float  # 0 a blur, 1 crisp
    sky: str
    sky_share: float
    green_share: float
    soil_share: float
    hill_share: float
    road_share: float
    building_share: float
    ground: str
    sign: str | None = None  # background of a direction sign
    landmark: str | None = None
    walls: str | None = None  # what house fronts are mostly like: red | warm | grey; None where few are seen


def _sharpness(image: Image.Image) -> float:
    """How steep the steepest edges are at full size: blur flattens all of them, an empty scene only most."""
    grey = np.asarray(image.convert("L"), dtype=np.float32)
    step = max(1, grey.shape[0] // 500)
    across = np.abs(np.diff(grey[::step], axis=1))
    return float(min(1.0, np.percentile(across, 99.7) / 60))


def measure_scene(image: Image.Image) -> Scene:
    """Measures a picture at a fixed working size."""
    panorama = is_panorama(*image.size)
    pixels = reduced(image, WORK_PX, 8)
    height = len(pixels)
    red, green, blue = np.moveaxis(pixels, 2, 0)
    light, spread = pixels.mean(axis=2), np.ptp(pixels, axis=2)
    upper, lower, middle = slice(height // 2), slice(height // 2, height), slice(height // 4, int(height * 0.55))
    sky, plants = _is_sky(pixels), _is_green(pixels)
    soil = (red > green * 1.06) & (green > blue * 1.06) & (light > 0.15)
    grey = (spread < 0.08) & (light > 0.12) & (light < 0.6)
    other = ~(sky | plants)[middle]
    return Scene(
        **vars(read_road(image, panorama)),
        view="360-degree panorama" if panorama else "ordinary photo",
        brightness=float(light.mean()),
        sharpness=_sharpness(image),
        sky=_sky_name(pixels[: height // 4]),
        sky_share=float(sky[upper].mean()) / 2,
        green_share=float(plants.mean()),
        soil_share=float(soil[lower].mean()) / 2,
        hill_share=_hills(sky, panorama),
        road_share=float(grey[lower].mean()) / 2,
        building_share=float(other.mean()) * 0.3,
        ground=_ground_name(pixels[lower][~grey[lower]]),
        walls=_walls(pixels[middle][other]),
    )


def reduced(image: Image.Image, long_px: int, least_px: int) -> Floats:
    """The picture at a working size, 0..1."""
    ratio = long_px / max(image.size)
    size = max(least_px, round(image.width * ratio)), max(least_px, round(image.height * ratio))
    return np.asarray(image.resize(size, Image.Resampling.BOX), dtype=np.float32) / np.float32(255)


def _is_sky(pixels: Floats) -> NDArray[np.bool_]:
    red, green, blue = pixels[..., 0], pixels[..., 1], pixels[..., 2]
    return np.asarray((blue >= red - 0.02) & (blue >= green - 0.02) & (pixels.mean(axis=2) > 0.35))


def _is_green(pixels: Floats) -> NDArray[np.bool_]:
    red, green, blue = pixels[..., 0], pixels[..., 1], pixels[..., 2]
    return np.asarray((green > red * 1.05) & (green > blue * 1.12) & (pixels.mean(axis=2) > 0.06))


def cover_boxes(image: Image.Image, what: str, side: int = 24) -> list[list[int]]:
    """Boxes, in pixels of the picture, of the squares of a grid that are mostly sky or plants; runs of a row as one."""
    small = np.asarray(image.resize((2 * side * 4, side * 4), Image.Resampling.BOX), dtype=np.float32) / np.float32(255)
    mask = _is_sky(small) if what == "sky" else _is_green(small)
    if what == "sky":
        mask = np.logical_and.accumulate(mask, axis=0)  # a grey wall below a roof is none
        mask[mask.shape[0] // 2 :] = False
    squares = mask.reshape(side, 4, 2 * side, 4).mean(axis=(1, 3)) > 0.5
    wide, high = image.width / (2 * side), image.height / side
    return [
        [round(first * wide), round(row * high), round(last * wide), round((row + 1) * high)]
        for row, line in enumerate(squares)
        for first, last in _runs(line).tolist()
    ]


def _walls(fronts: Floats) -> str | None:
    """The colour of what stands between road and sky and is neither sky nor plant."""
    lit = fronts[(fronts.mean(axis=1) > 0.3) & (fronts.mean(axis=1) < 0.95)]
    if len(lit) < 400:
        return None
    red, green, blue = np.median(lit, axis=0)
    is_red = red > 1.3 * green and red > 1.35 * blue
    return pick({"red": is_red, "warm": red > 1.18 * blue, "grey": red < 1.08 * blue})


def _hills(sky: NDArray[np.bool_], panorama: bool) -> float:
    """How much of the view down the street, a little above the horizon, is not sky."""
    if not panorama:
        return 0.0
    height, width = sky.shape
    ahead = sky[int(height * 0.475) : int(height * 0.485), int(width * 0.492) : int(width * 0.508)]
    return float((~ahead).mean()) * 0.1 if ahead.size else 0.0


def _sky_name(top: Floats) -> str:
    red, _, blue = top.reshape(-1, 3).mean(axis=0)
    light = float(top.mean())
    return pick({"dark": light < 0.2, "blue": blue - red > 0.12, "pale": light > 0.7}) or "grey"


def _ground_name(pixels: Floats) -> str:
    if len(pixels) < 50:
        return "grey"
    red, green, blue = pixels.reshape(-1, 3).mean(axis=0)
    cases = {
        "white, perhaps snow": min(red, green, blue) > 0.8,
        "green": green > red and green > blue * 1.1,
        "reddish": red > green * 1.25,
        "sandy": red > blue * 1.25 and red > 0.6,
        "brown": red > blue * 1.25,
    }
    return pick(cases) or "grey"


def pick(cases: dict[str, bool]) -> str | None:
    """The name of the first case that holds."""
    return next((name for name, holds in cases.items() if holds), None)
