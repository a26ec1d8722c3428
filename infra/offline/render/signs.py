"""Sign boards: fonts, boards as small images, and which of them can be seen in a painted picture."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from infra.offline.render.canvas import Colour

SHOP_COLOURS: tuple[tuple[Colour, Colour], ...] = (
    ((250, 246, 236), (120, 24, 30)), ((20, 92, 54), (250, 250, 245)), ((24, 56, 120), (250, 250, 250)),
    ((168, 28, 34), (255, 250, 240)), ((246, 208, 60), (30, 30, 34)), ((44, 44, 48), (244, 226, 180)),
    ((252, 252, 252), (20, 60, 130)), ((92, 54, 30), (250, 236, 206)),
)  # fmt: skip
# Of street names, in America and Oceania the second.
PLATE_COLOURS: tuple[tuple[Colour, Colour], ...] = (((20, 66, 140), (250, 250, 250)), ((0, 100, 66), (250, 250, 250)))
OVERHEAD_M, OVERHEAD_HEIGHTS = (4.4, 1.2), (0.4, 0.34)  # the board over the road, and its two lines' letters
DIRECTION_COLOURS: dict[str, tuple[Colour, Colour]] = {
    "green": ((0, 104, 71), (255, 255, 255)), "blue": ((0, 74, 156), (255, 255, 255)),
    "yellow": ((250, 200, 20), (16, 16, 16)), "white": ((250, 250, 250), (16, 16, 16)),
}  # fmt: skip


@lru_cache(maxsize=8)
def _file(package: str, *parts: str) -> Path:
    # find_spec does not import the package: one of the two would pull in a plotting library.
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(f"the package {package} is needed to draw signs; install it with the project's dependencies")
    return Path(spec.submodule_search_locations[0]).joinpath(*parts)


def is_cjk(text: str) -> bool:
    """Whether a text holds Chinese or Japanese characters, which the Latin font lacks."""
    return any("\u3000" <= ch <= "\u9fff" for ch in text)


@lru_cache(maxsize=512)
def font(size_px: int, cjk: bool) -> ImageFont.FreeTypeFont:
    """The sign font at a size: IPAex Gothic for Chinese and Japanese, Open Sans otherwise."""
    path = (
        _file("matplotlib_fontja", "fonts", "ipaexg.ttf")
        if cjk
        else _file("ttf_opensans", "ttf", "OpenSans-SemiBold.ttf")
    )
    # The basic layout engine ships with every build of Pillow, so bytes do not depend on an optional library.
    return ImageFont.truetype(str(path), size_px, layout_engine=ImageFont.Layout.BASIC)


@lru_cache(maxsize=256)
def board_texture(
    lines: tuple[str, ...], size: tuple[int, int], back: Colour, front: Colour, heights: tuple[float, ...]
) -> Image.Image:
    """A board with centred lines of text; `heights` are the letter heights as parts of the board's height."""
    width, height = size
    big = 2  # drawn larger and reduced, for smooth letters
    image = Image.new("RGB", (width * big, height * big), back)
    draw = ImageDraw.Draw(image)
    edge = max(1, round(height * big * 0.03))
    draw.rectangle([edge, edge, width * big - 1 - edge, height * big - 1 - edge], outline=front, width=edge)
    for line, letters, x, y in set_lines(lines, size, heights, big):
        draw.text((x, y), line, font=letters, fill=front)
    return image.resize(size, Image.Resampling.BOX)


def set_lines(
    lines: tuple[str, ...], size: tuple[int, int], heights: tuple[float, ...], big: int = 1
) -> Iterator[tuple[str, ImageFont.FreeTypeFont, float, float]]:
    """(line, font, x, y) of each line on a board of this size, everything `big` times as large."""
    width, height = size
    free = height * (1 - sum(heights))
    top = free / (len(lines) + 1)
    for line, part in zip(lines, heights, strict=True):
        letters = font(max(6, round(height * part * big * 0.92)), is_cjk(line))
        left, upper, right, lower = letters.getbbox(line)
        if right - left > width * big * 0.92:
            shrunk = max(6, int(letters.size * width * big * 0.92 / (right - left)))
            letters = font(shrunk, is_cjk(line))
            left, upper, right, lower = letters.getbbox(line)
        middle = (top + height * part / 2) * big
        yield line, letters, (width * big - (right - left)) / 2 - left, middle - (upper + lower) / 2
        top += height * part + free / (len(lines) + 1)


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
        seen_boards = []
        for sign, pixels, mask in self._noted:
            now = np.asarray(self._image.crop(sign.box))
            same = (now == pixels).all(axis=-1) & mask
            free = float(same.sum()) / max(1, int(mask.sum()))
            seen_boards.append(SeenSign(sign.lines, sign.letters_px, sign.box, round(free, 3)))
        return seen_boards
