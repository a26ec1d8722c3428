"""Sign boards: the text a picture can be localized by, as small images."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

from infra.offline.render.canvas import Colour
from infra.offline.render.fonts import font, is_cjk

SHOP_COLOURS: tuple[tuple[Colour, Colour], ...] = (
    ((250, 246, 236), (120, 24, 30)), ((20, 92, 54), (250, 250, 245)), ((24, 56, 120), (250, 250, 250)),
    ((168, 28, 34), (255, 250, 240)), ((246, 208, 60), (30, 30, 34)), ((44, 44, 48), (244, 226, 180)),
    ((252, 252, 252), (20, 60, 130)), ((92, 54, 30), (250, 236, 206)),
)  # fmt: skip
DIRECTION_COLOURS: dict[str, tuple[Colour, Colour]] = {
    "green": ((0, 104, 71), (255, 255, 255)), "blue": ((0, 74, 156), (255, 255, 255)),
    "yellow": ((250, 200, 20), (16, 16, 16)), "white": ((250, 250, 250), (16, 16, 16)),
}  # fmt: skip


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
