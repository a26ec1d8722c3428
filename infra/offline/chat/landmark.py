"""Whether a picture shows a landmark: a built thing that towers over the street ahead, or says so itself."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import numpy as np
from PIL import Image

# What the plates at the foot of such things say.
_WORDS = re.compile(r"\b(monum|memorial|denkmal|obelis|cathedral|pomnik)|MONU|纪念碑|記念碑|紀念碑", re.IGNORECASE)
AHEAD_DEGREES = 11.0
HIGH_DEGREES = (23.0, 31.0)  # houses end below where a street runs away; an obelisk, dome or gate does not
TOWER_DEGREES = 1.2


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
    width, height = image.size
    row = [int(height * (0.5 - degrees / 180)) for degrees in (HIGH_DEGREES[1], HIGH_DEGREES[0])]
    half = int(width * AHEAD_DEGREES / 360)
    ahead = np.asarray(image.crop((width // 2 - half, row[0], width // 2 + half, row[1])), dtype=np.float32)
    red, green, blue = ahead[..., 0], ahead[..., 1], ahead[..., 2]
    built = (red - blue > 18) & (red > 120) & (green > blue + 6) & (red >= green)
    share = built.mean(axis=0)
    longest = _longest(share > 0.5)
    if longest >= math.ceil(width * TOWER_DEGREES / 360) and longest < 1.8 * half:
        return "a monument towers over the street ahead"
    return None


def _longest(flags: np.ndarray) -> int:
    best = run = 0
    for flag in flags:
        run = run + 1 if flag else 0
        best = max(best, run)
    return best
