"""Single sign boards as a zoom would show them, painted in a millisecond, and the order in which they are taught.

A board is drawn with the painter's own texture and letters, tilted, put before a piece of a painted picture, and
encoded as the picture would be. Character positions are known, which lets a model learn where letters stand. Lessons
run from single letters over short strings and words to whole signs as they stand in the streets.
"""

import io
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import cv2
import numpy as np
from PIL import Image, ImageChops

from infra.offline.place import Place
from infra.offline.render import JPEG_QUALITY
from infra.offline.render.canvas import Colour
from infra.offline.render.signs import (
    DIRECTION_COLOURS,
    OVERHEAD_HEIGHTS,
    OVERHEAD_M,
    PLATE_COLOURS,
    SHOP_COLOURS,
    board_texture,
    is_cjk,
    set_lines,
)

PATCH = 28  # pixels along the side of one token
# Rows x columns in tokens: what a picture of about 40,000 pixels, the zoom tool's smallest, becomes.
GRIDS: tuple[tuple[int, int], ...] = ((7, 7), (6, 8), (5, 9), (5, 10), (4, 11), (4, 12), (4, 14), (3, 16), (3, 18))
_MONUMENT: tuple[Colour, Colour] = ((120, 92, 40), (250, 240, 210))


@dataclass(frozen=True)
class Board:
    """A kind of board with its text: width against height, letter heights, colours."""

    lines: tuple[str, ...]
    aspect: float
    heights: tuple[float, ...]
    colours: tuple[Colour, Colour]
    flat: bool  # on a wall along the street, so seen at an angle


@dataclass(frozen=True)
class Crop:
    """A zoomed sign: pixels of the grid's size, line 0 or 1 and its text, (column, row) of its letters."""

    pixels: np.ndarray
    grid: tuple[int, int]
    line: int
    text: str
    centres: list[tuple[float, float]]


def boards_of(place: Place) -> list[Board]:
    """The boards that stand in a place's street."""
    boards: list[Board] = []
    for number, sign in enumerate(place.shops):
        two = len(sign.lines) > 1
        colours = SHOP_COLOURS[(number * 3 + place.index) % len(SHOP_COLOURS)]
        width = min(7.6, max(4.2, 0.34 * max(len(sign.lines[0]), 8)))
        boards.append(Board(sign.lines, width / 1.05, (0.46, 0.24) if two else (0.55,), colours, True))
        boards.append(Board(sign.lines, 2.3, (0.36, 0.22) if two else (0.42,), colours, False))
    if place.towns_ahead:
        lines = tuple(f"{name}  {km}" for name, km in place.towns_ahead)
        colours = DIRECTION_COLOURS[place.facts.direction_sign]
        boards.append(Board(lines, 3.4 / (0.72 * len(lines) + 0.2), (0.66 / len(lines),) * len(lines), colours, False))
    boards.append(Board((place.street,), 1.6 / 0.36, (0.62,), _plate_colours(place), False))
    boards.append(overhead_board(place))
    boards.append(Board(("MONUMENT", place.local_name), 5.0 / 1.9, (0.4, 0.34), _MONUMENT, False))
    return boards


def overhead_board(place: Place) -> Board:
    """The board over the road: street and region."""
    width, height = OVERHEAD_M
    return Board((place.street, place.region), width / height, OVERHEAD_HEIGHTS, _plate_colours(place), False)


def _plate_colours(place: Place) -> tuple[Colour, Colour]:
    return PLATE_COLOURS[place.facts.continent in ("NA", "OC")]


def practice_board(text: str, rng: random.Random) -> Board:
    """A board with a text of one line, for the first lessons."""
    pairs = (*SHOP_COLOURS, *DIRECTION_COLOURS.values(), *PLATE_COLOURS, _MONUMENT)
    colours = rng.choice(pairs)
    if rng.random() < 0.3:
        back = rng.randrange(256), rng.randrange(256), rng.randrange(256)
        colours = back, tuple((part + 128) % 256 for part in back)  # type: ignore[assignment]
    aspect = min(7.0, max(1.2, 0.4 * len(text) + rng.uniform(0.4, 2.0)))
    return Board((text,), aspect, (rng.uniform(0.42, 0.66),), colours, rng.random() < 0.4)


def readable(text: str) -> bool:
    """Whether a line is in letters the base is taught: Latin ones, not Chinese or Japanese characters."""
    return not is_cjk(text)


def letter_px(text: str, letters: float, wide_px: float) -> float:
    """The height of a line's letters as painted: less than planned where the text is too wide for its board."""
    return min(letters, 0.92 * wide_px / max(1, len(text)) / 0.5)


def grid_of(aspect: float) -> tuple[int, int]:
    """The grid whose shape is nearest to width / height."""
    return min(GRIDS, key=lambda grid: abs(math.log(grid[1] / grid[0] / aspect)))


def crop_board(
    board: Board, line: int, letters_px: float, background: Callable[[int, int], Image.Image], rng: random.Random
) -> Crop:
    """The board as a zoom shows it, the line's letters about `letters_px` high in the picture it is cut from."""
    height = min(100.0, max(9.0, letters_px / board.heights[line]))  # larger ones are reduced by the zoom anyway
    squeeze = rng.uniform(0.3, 1.0) if board.flat and rng.random() < 0.8 else rng.uniform(0.9, 1.0)
    width = height * board.aspect * squeeze
    rows = int(min(220, max(12, height * 1.15)))
    columns = max(8, round(rows * board.aspect))
    texture = board_texture(board.lines, (columns, rows), *board.colours, board.heights)
    left_pad, right_pad = (rng.uniform(0.01, 0.16) * width + 1 for _ in range(2))
    top_pad, bottom_pad = (rng.uniform(0.03, 0.4) * height + 1 for _ in range(2))
    full_w, full_h = left_pad + width + right_pad, top_pad + height + bottom_pad
    grid = grid_of(full_w / full_h)
    wanted = grid[1] / grid[0]
    if full_w / full_h < wanted:  # as wide as the grid is, the board somewhere in it
        more = wanted * full_h - full_w
        left_pad, full_w = left_pad + rng.random() * more, full_w + more
    else:
        more = full_w / wanted - full_h
        top_pad, full_h = top_pad + rng.random() * more, full_h + more
    region_w, region_h = max(12, round(full_w)), max(8, round(full_h))
    tilt = rng.uniform(-0.22, 0.22) if board.flat else rng.uniform(-0.04, 0.04)
    rise = rng.uniform(-0.12, 0.12) * height if board.flat else rng.uniform(-0.03, 0.03) * height
    up, down = max(0.0, tilt) * height, max(0.0, -tilt) * height
    corners = np.array([
        (left_pad, top_pad + down), (left_pad + width, top_pad + up + rise),
        (left_pad + width, top_pad + height - up + rise), (left_pad, top_pad + height - down),
    ])  # fmt: skip
    source = np.array([(0, 0), (columns, 0), (columns, rows), (0, rows)], np.float32)
    back = cv2.getPerspectiveTransform(corners.astype(np.float32), source)
    patch = texture.transform(
        (region_w, region_h), Image.Transform.PERSPECTIVE, tuple(back.ravel()[:8]), Image.Resampling.BILINEAR
    )
    mask = Image.new("L", texture.size, 255).transform(
        (region_w, region_h), Image.Transform.PERSPECTIVE, tuple(back.ravel()[:8]), Image.Resampling.NEAREST
    )
    region = background(region_w, region_h)
    region.paste(patch, (0, 0), mask)
    pixels = finished(region, grid, rng)
    scale = np.array([grid[1] * PATCH / region_w, grid[0] * PATCH / region_h])
    letters = np.array([_letter_centres(board, line, (columns, rows))])
    centres = cv2.perspectiveTransform(letters, np.linalg.inv(back))[0] * scale if letters.size else letters[0]
    centres = [(float(x), float(y)) for x, y in centres]
    return Crop(pixels, grid, line, board.lines[line], centres)


def finished(region: Image.Image, grid: tuple[int, int], rng: random.Random) -> np.ndarray:
    """Grain, JPEG and the enlargement to the grid's size."""
    noise = _GRAIN.crop((x := rng.randrange(200), y := rng.randrange(200), x + region.width, y + region.height))
    region = ImageChops.add(region, noise, 1, -128)
    buffer = io.BytesIO()
    region.save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling="4:2:0")
    decoded = Image.open(buffer).convert("RGB")
    return np.asarray(decoded.resize((grid[1] * PATCH, grid[0] * PATCH), Image.Resampling.BICUBIC))


def _make_grain() -> Image.Image:
    rng = np.random.default_rng(1)
    noise = rng.normal(0, 2.4, size=(1200, 2600, 1)) + rng.normal(0, 0.7, size=(1200, 2600, 3))
    return Image.fromarray(np.clip(np.round(noise + 128), 0, 255).astype(np.uint8))


_GRAIN = _make_grain()


def _letter_centres(board: Board, line: int, size: tuple[int, int]) -> list[tuple[float, float]]:
    text, letters, x, y = list(set_lines(board.lines, size, board.heights))[line]
    ends = [0.0]
    for character in text:
        ends.append(ends[-1] + letters.getlength(character))
    stretch = letters.getlength(text) / ends[-1] if ends[-1] else 1.0
    _, upper, _, lower = letters.getbbox(text)
    row = y + (upper + lower) / 2
    return [(x + (a + b) / 2 * stretch, row) for a, b in pairwise(ends)]


LEVELS = (1, 2, 3, 5, 8, 12, 18, 34)  # most characters of a line
SIGNS_FROM = 5  # the level number from which real signs come


def pieces_of(pictures: Sequence[Image.Image], rng: random.Random) -> Callable[[int, int], Image.Image]:
    """What draws a piece of any of these pictures, as wide and high as requested: the background of a board."""

    def piece(width: int, height: int) -> Image.Image:
        picture = rng.choice(pictures)
        x, y = rng.randrange(max(1, picture.width - width)), rng.randrange(max(1, picture.height - height))
        return picture.crop((x, y, x + width, y + height))

    return piece


def letters_of(places: Sequence[Place]) -> str:
    """Every letter that stands on the signs of these places, and digits."""
    seen = {letter for place in places for board in boards_of(place) for line in board.lines if readable(line)
            for letter in line}  # fmt: skip
    return "".join(sorted(seen | set("0123456789.+") - {" "}))


def lesson(number: int, places: Sequence[Place], letters: str, rng: random.Random) -> tuple[Board, int, float]:
    """(board, queried line, letter height in pixels) of the next exercise at a level."""
    most, share = LEVELS[number], rng.random()
    small = 7.5 if number == len(LEVELS) - 1 else 10.0 if number >= SIGNS_FROM else 14.0
    size = math.exp(rng.uniform(math.log(small), math.log(28.0)))
    signs = 0.0 if number < SIGNS_FROM else 0.55 if number < len(LEVELS) - 1 else 0.75
    if share < signs:
        board = rng.choice([b for b in boards_of(rng.choice(places)) if b.lines[0] != "MONUMENT" or rng.random() < 0.3])
        line = rng.randrange(len(board.lines))
        if readable(board.lines[line]) and len(board.lines[line]) <= LEVELS[-1]:
            return board, line, size
    count = most if rng.random() < 0.5 else rng.randrange(1, most + 1)
    random_text = "".join(rng.choice(letters) for _ in range(count))
    text = random_text if rng.random() < 0.4 else _piece(places, count, rng)
    return practice_board(text.strip() or "a", rng), 0, size


def _piece(places: Sequence[Place], count: int, rng: random.Random) -> str:
    """A stretch of a real sign's text."""
    board = rng.choice(boards_of(rng.choice(places)))
    line = rng.choice(board.lines)
    if not readable(line):
        return "".join(rng.choice("0123456789") for _ in range(count))
    start = rng.randrange(max(1, len(line) - count + 1))
    return line[start : start + count]
