"""Whether a picture shows a landmark: a built thing that towers over the street ahead, or says so itself."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from PIL import Image

# What the plates at the foot of such things say.
_WORDS = re.compile(r"\b(memorial|denkmal|obelis|cathedral|pomnik)|MONU|NUMENT|纪念碑|記念碑|紀念碑", re.IGNORECASE)
AHEAD_DEGREES = 11.0
# Houses end lower where a street runs away; an obelisk or a gate does not, and a dome sits broad above a hall.
TOWER_ROWS, TOWER_DEGREES = (23.0, 31.0), 1.2
DOME_ROWS, DOME_DEGREES = (17.0, 21.0), 5.0


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
    longest = _longest(mask.mean(axis=0) > 0.5)
    return longest * 360 / width if longest < 0.9 * mask.shape[1] else 0.0


def _longest(flags: np.ndarray) -> int:
    best = run = 0
    for flag in flags:
        run = run + 1 if flag else 0
        best = max(best, run)
    return best
