"""The road in a picture: colours of its lines, and the side traffic keeps to.

The ground is laid flat, as seen from above, on the assumptions any street-view reader makes: an upright camera on a
car, level ground, and (in a panorama) the direction of travel in the middle. A car drives in the middle of its own
lane, so the road reaches farther on the side of oncoming traffic, and the line between is the centre line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

Floats = NDArray[np.float32]

# Lengths are in camera heights, since a picture alone has no scale.
REACH, STEP = 5.0, 0.02
AHEAD = np.concatenate([np.linspace(-3.2, -0.5, 40), np.linspace(0.5, 3.2, 40)])
ASPHALT_CHANGE = 16.0  # a colour step that ends the asphalt, of 255
LINE_RISE = 26.0  # how much brighter than its surroundings a line is
UNSEEN = (255.0, 0.0, 255.0)  # no road has this colour
LINE_WIDTHS = (2, 4, 7)  # in STEPs


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
    found = vanishing_point(image)
    return _judge(_flatten_photo(image, found)) if found is not None else Road()


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
    found = cv2.remap(
        pixels, column.astype(np.float32), row.astype(np.float32), cv2.INTER_LINEAR, borderValue=(255, 0, 255)
    )
    flat = np.asarray(found, dtype=np.float32)
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
    found = cv2.HoughLinesP(edges, 1, np.pi / 360, 60, minLineLength=height // 9, maxLineGap=12)
    if found is None:
        return None
    lines = []
    for x1, y1, x2, y2 in found.reshape(-1, 4).astype(float):
        if abs(y2 - y1) > 0.06 * abs(x2 - x1) and abs(y2 - y1) > 8:
            lines.append(((x2 - x1) / (y2 - y1), x1, y1, math.hypot(x2 - x1, y2 - y1)))
    best, votes = None, 0.0
    for i, (slope_a, xa, ya, _) in enumerate(lines):
        for slope_b, xb, yb, _ in lines[i + 1 :]:
            if abs(slope_a - slope_b) < 0.25:
                continue
            row = (xb - xa + slope_a * ya - slope_b * yb) / (slope_a - slope_b)
            column = xa + slope_a * (row - ya)
            if not (height * 0.3 < row < height * 0.66 and -0.5 * width < column < 1.5 * width):
                continue
            near = [
                length
                for slope, x, y, length in lines
                if abs(x + slope * (row - y) - column) / math.hypot(1, slope) < 5
            ]
            weight = sum(near) if len(near) >= 3 else 0.0
            if weight > votes:
                best, votes = (column / scale, row / scale), weight
    return best


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
    colours = profile[len(across) // 2 :]
    alike = np.abs(colours - asphalt).max(axis=1) < ASPHALT_CHANGE
    patience = round(0.28 / STEP)
    reached, missed = 0.0, 0
    for distance, same in zip(outward, alike, strict=True):
        if same:
            reached, missed = float(distance), 0
        else:
            missed += 1
            if missed > patience:
                break
    return reached


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
    found = []
    for at in range(12, len(across) - 12):
        window = strength[at - 8 : at + 9]
        if strength[at] > LINE_RISE and strength[at] >= window.max():
            rows = best[:, at] > LINE_RISE
            found.append((float(across[at]), np.nanmedian(flat[rows, at], axis=0).astype(np.float32)))
    return found


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
