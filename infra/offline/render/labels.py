"""Which boards of text can be seen in a painted picture, where, and how large: labels for learning to read.

A board is noted when it is painted; what is painted later may cover it. Its pixels are therefore kept and compared
with the finished picture's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image


@dataclass(frozen=True)
class SeenSign:
    """One board: its lines, its letters' heights in pixels, its box (left, top, right, bottom), what is free of it."""

    lines: tuple[str, ...]
    letters_px: tuple[float, ...]
    box: tuple[int, int, int, int]
    free: float  # share of its pixels that nothing covers


class BoardWatch:
    """Notes the boards painted on a picture while they are painted."""

    def __init__(self, image: Image.Image) -> None:
        self._image = image
        self._noted: list[tuple[SeenSign, np.ndarray, np.ndarray]] = []

    def note(
        self, lines: tuple[str, ...], heights: tuple[float, ...], high_px: float, painted: tuple[int, int, Image.Image]
    ) -> None:
        """Remember a board that was just painted: `painted` is its left, top and mask; `high_px` its height."""
        left, top, mask = painted
        right, bottom = left + mask.width, top + mask.height
        if left < 0 or right > self._image.width:  # over the seam of a panorama, or cut off by a photo's edge
            return
        box = left, top, right, bottom
        sign = SeenSign(lines, tuple(round(part * high_px, 2) for part in heights), box, 1.0)
        self._noted.append((sign, np.asarray(self._image.crop(box)).copy(), np.asarray(mask) > 0))

    def seen(self) -> list[SeenSign]:
        """The boards of the finished picture, each with the share of it that is still to be seen."""
        found = []
        for sign, pixels, mask in self._noted:
            now = np.asarray(self._image.crop(sign.box))
            same = (now == pixels).all(axis=-1) & mask
            free = float(same.sum()) / max(1, int(mask.sum()))
            found.append(SeenSign(sign.lines, sign.letters_px, sign.box, round(free, 3)))
        return found
