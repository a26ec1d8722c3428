"""The scene in numbers, from pixels alone: light, sharpness, colours, the road's lines and side, landmarks.

The ground is laid flat, as seen from above, on the assumptions any street-view reader makes: an upright camera on a
car, level ground, and (in a panorama) the direction of travel in the middle. A car drives in the middle of its own
lane, so the road reaches farther on the side of oncoming traffic, and the line between is the centre line.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

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
# Houses end lower where a street runs away; an obelisk or a gate does not, and a dome sits broad above a hall.
TOWER_ROWS, TOWER_DEGREES = (23.0, 31.0), 1.2
DOME_ROWS, DOME_DEGREES = (17.0, 21.0), 5.0
WORK_PX = 512  # the long side at which colours are measured


@dataclass(frozen=True)
class Road:
    centre: str | None = None
    edge: str | None = None
    side: str | None = None
    confidence: float = 0.0
    reason: str = "not seen"
    seen: bool = False


def read_road(image: Image.Image, panorama: bool) -> Road:
    """What the road shows, or a Road of Nones where there is none to see."""
    if panorama:
        return _judge(_flatten_panorama(image))
    vanishing = vanishing_point(image)
    return _judge(_flatten_photo(image, vanishing)) if vanishing is not None else Road()


def _flatten_panorama(image: Image.Image) -> Floats:
    """Ground colours by (distance along, offset across), from an equirectangular picture."""
    pixels = np.asarray(image)
    height, width = pixels.shape[:2]
    across = np.arange(-REACH, REACH, STEP)
    z, x = np.meshgrid(AHEAD, across, indexing="ij")
    flat = np.hypot(x, z)
    row = height / 2 + np.arctan(1 / flat) * height / math.pi
    column = width / 2 + np.arctan2(x, z) * width / (2 * math.pi)
    found = cv2.remap(
        pixels, column.astype(np.float32), row.astype(np.float32), cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP
    )
    return np.asarray(found, dtype=np.float32)


def _flatten_photo(image: Image.Image, point: tuple[float, float]) -> Floats:
    """The same from a photo: lines along the road all run to the vanishing point, so each offset is one slope."""
    pixels = np.asarray(image)
    height, width = pixels.shape[:2]
    column0, row0 = point
    across = np.arange(-REACH, REACH, STEP)
    rows = np.linspace(row0 + (height - row0) * 0.2, height - 2, 80)
    row, slope = np.meshgrid(rows, across, indexing="ij")
    column = column0 + slope * (row - row0)
    remapped = cv2.remap(
        pixels, column.astype(np.float32), row.astype(np.float32), cv2.INTER_LINEAR, borderValue=(255, 0, 255)
    )
    flat = np.asarray(remapped, dtype=np.float32)
    flat[(column < 0) | (column > width - 1)] = np.nan
    return flat


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
        return Road(seen=True)
    side, reason = ("right", "left") if left > right else ("left", "right")
    ratio = max(left, right) / min(left, right)
    confidence = float(np.clip((ratio - 1.15) / 1.2, 0.0, 0.97))
    colours = _colours(lines, left, right)
    if confidence < 0.15:
        return Road(colours[0], colours[1], seen=True)
    return Road(
        colours[0], colours[1], side, confidence, f"the road reaches farther on the {reason} of the camera", True
    )


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
    far = -left if left > right else right
    width = left + right
    for offset, colour in lines:
        place = (offset - far) / (-width if far > 0 else width)  # 0 at the far edge, 1 at the near one
        if 0.35 < place < 0.66:
            centre = centre or _line_colour(colour)
        elif -0.02 < place < 0.2 or 0.8 < place < 1.02:
            edge = edge or _line_colour(colour)
    return centre, edge


def _line_colour(colour: Floats) -> str | None:
    red, green, blue = (float(part) for part in colour)
    if red > 110 and red - blue > 45 and green > blue:
        return "yellow"
    return "white" if min(red, green, blue) > 120 else None


def named_landmark(texts: Iterable[str]) -> str | None:
    """The plate that names a landmark, if one is readable."""
    for text in texts:
        if _WORDS.search(text):
            return f"a plate reads '{text}'"
    return None


def tower_ahead(image: Image.Image, panorama: bool) -> str | None:
    """A pale or golden structure standing high over the road ahead; only a panorama shows enough sky to tell."""
    if not panorama:
        return None
    red, green, blue = _ahead(image, TOWER_ROWS)
    pale = (red - blue > 18) & (red > 120) & (green > blue + 6) & (red >= green)
    if _widest_degrees(pale, image.width) >= TOWER_DEGREES:
        return "a monument towers over the street ahead"
    red, green, blue = _ahead(image, DOME_ROWS)
    golden = (red > 150) & (red - blue > 90) & (green > 0.7 * red) & (green < 0.9 * red)
    if _widest_degrees(golden, image.width) >= DOME_DEGREES:
        return "a golden dome closes the street ahead"
    return None


def _ahead(image: Image.Image, rows_degrees: tuple[float, float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Red, green and blue of the view down the road, between two heights over the horizon."""
    width, height = image.size
    low, high = (int(height * (0.5 - degrees / 180)) for degrees in rows_degrees)
    half = int(width * AHEAD_DEGREES / 360)
    view = np.asarray(image.crop((width // 2 - half, high, width // 2 + half, low)), dtype=np.float32)
    return view[..., 0], view[..., 1], view[..., 2]


def _widest_degrees(mask: np.ndarray, width: int) -> float:
    """How wide the widest thing is that fills most of the rows; nothing where it fills the whole view."""
    edges = np.flatnonzero(np.diff(mask.mean(axis=0) > 0.5, prepend=False, append=False))
    longest = int(np.max(edges[1::2] - edges[::2], initial=0))
    return longest * 360 / width if longest < 0.9 * mask.shape[1] else 0.0


@dataclass(frozen=True)
class Scene:
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
    centre: str | None  # colour of the centre line
    edge: str | None
    side: str | None  # left | right
    side_confidence: float
    side_reason: str
    sign: str | None  # background of a direction sign
    landmark: str | None
    walls: str | None = None  # what house fronts are mostly like: red | warm | grey; None where few are seen


def measure_scene(image: Image.Image) -> Scene:
    """Measures a picture at a fixed working size."""
    panorama = is_panorama(*image.size)
    ratio = WORK_PX / max(image.size)
    size = (max(8, round(image.width * ratio)), max(8, round(image.height * ratio)))
    small = np.asarray(image.resize(size, Image.Resampling.BOX), dtype=np.float32) / np.float32(255)
    road = read_road(image, panorama)
    return _describe(small, road, _sharpness(image), panorama)


def _sharpness(image: Image.Image) -> float:
    """How steep the steepest edges are at full size: blur flattens all of them, an empty scene only most."""
    grey = np.asarray(image.convert("L"), dtype=np.float32)
    step = max(1, grey.shape[0] // 500)
    across = np.abs(np.diff(grey[::step], axis=1))
    return float(min(1.0, np.percentile(across, 99.7) / 60))


def _describe(pixels: NDArray[np.float32], road: Road, sharpness: float, panorama: bool) -> Scene:
    height = pixels.shape[0]
    red, green, blue = pixels[..., 0], pixels[..., 1], pixels[..., 2]
    light = pixels.mean(axis=2)
    spread = pixels.max(axis=2) - pixels.min(axis=2)
    upper, lower = slice(0, height // 2), slice(height // 2, height)
    sky_mask, green_mask = _is_sky(pixels), _is_green(pixels)
    sky_share = float(sky_mask[upper].mean()) / 2
    soil_mask = (red > green * 1.06) & (green > blue * 1.06) & (light > 0.15)
    grey_mask = (spread < 0.08) & (light > 0.12) & (light < 0.6)
    middle = slice(int(height * 0.25), int(height * 0.55))
    other = ~(sky_mask | green_mask)[middle]
    ground = pixels[lower][~grey_mask[lower]]
    return Scene(
        view="360-degree panorama" if panorama else "ordinary photo",
        brightness=float(light.mean()),
        sharpness=sharpness,
        sky=_sky_name(pixels[: height // 4]),
        sky_share=sky_share,
        green_share=float(green_mask.mean()),
        soil_share=float(soil_mask[lower].mean()) / 2,
        hill_share=_hills(sky_mask, panorama),
        road_share=float(grey_mask[lower].mean()) / 2,
        building_share=float(other.mean()) * 0.3,
        ground=_ground_name(ground),
        centre=road.centre,
        edge=road.edge,
        side=road.side,
        side_confidence=road.confidence,
        side_reason=road.reason,
        sign=None,
        landmark=None,
        walls=_walls(pixels[middle][other]),
    )


def _is_sky(pixels: NDArray[np.float32]) -> NDArray[np.bool_]:
    red, green, blue = pixels[..., 0], pixels[..., 1], pixels[..., 2]
    return np.asarray((blue >= red - 0.02) & (blue >= green - 0.02) & (pixels.mean(axis=2) > 0.35))


def _is_green(pixels: NDArray[np.float32]) -> NDArray[np.bool_]:
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
    boxes = []
    for row, is_it in enumerate(squares):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], is_it, [False]])))
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            box = (first * wide, row * high, last * wide, (row + 1) * high)
            boxes.append([round(edge) for edge in box])
    return boxes


def _walls(fronts: NDArray[np.float32]) -> str | None:
    """The colour of what stands between road and sky and is neither sky nor plant."""
    lit = fronts[(fronts.mean(axis=1) > 0.3) & (fronts.mean(axis=1) < 0.95)]
    if len(lit) < 400:
        return None
    red, green, blue = np.median(lit, axis=0)
    if red > 1.3 * green and red > 1.35 * blue:
        return "red"
    if red > 1.18 * blue:
        return "warm"
    return "grey" if red < 1.08 * blue else None


def _hills(sky: NDArray[np.bool_], panorama: bool) -> float:
    """How much of the view down the street, a little above the horizon, is not sky."""
    if not panorama:
        return 0.0
    height, width = sky.shape
    ahead = sky[int(height * 0.475) : int(height * 0.485), int(width * 0.492) : int(width * 0.508)]
    return float((~ahead).mean()) * 0.1 if ahead.size else 0.0


def _sky_name(top: NDArray[np.float32]) -> str:
    red, _, blue = top.reshape(-1, 3).mean(axis=0)
    light = float(top.mean())
    if light < 0.2:
        return "dark"
    if blue - red > 0.12:
        return "blue"
    return "pale" if light > 0.7 else "grey"


def _ground_name(pixels: NDArray[np.float32]) -> str:
    if len(pixels) < 50:
        return "grey"
    red, green, blue = pixels.reshape(-1, 3).mean(axis=0)
    if min(red, green, blue) > 0.8:
        return "white, perhaps snow"
    if green > red and green > blue * 1.1:
        return "green"
    if red > green * 1.25:
        return "reddish"
    if red > blue * 1.25:
        return "sandy" if red > 0.6 else "brown"
    return "grey"
