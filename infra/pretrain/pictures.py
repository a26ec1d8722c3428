"""Painted pictures and the questions about them: what is painted, never where it is.

A picture comes with the view a model sees, zoomed signs, attributes and a box.
"""

import io
import random
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from infra.offline.data import read_table
from infra.offline.place import Place
from infra.offline.render import encode, paint
from infra.offline.render.signs import SeenSign
from infra.offline.world import ImageRecord, World
from infra.pretrain.boards import PATCH, grid_of, letter_px

READ = ("Read line 1 of the sign.", "Read line 2 of the sign.")
SIDE = "Which side do they drive on?"
MIDDLE = "What colour is the middle line?"
EDGE = "What colour is the edge line?"
TREES = "Which plants grow there?"
HOUSES = "What are the houses like?"
BOX = "Where is the largest sign?"
ATTRIBUTES = (SIDE, MIDDLE, EDGE, TREES, HOUSES)

_TREES = {row["climate"]: row["plants"] for row in read_table("climates.csv")}
_HOUSES = {row["style"]: row["looks"] for row in read_table("building_styles.csv")}


def answers_of(place: Place) -> dict[str, str]:
    """The attribute questions' answers for a street: what its pictures show."""
    facts = place.facts
    return {
        SIDE: facts.drives_on,
        MIDDLE: facts.centre_line,
        EDGE: facts.edge_line,
        TREES: _TREES[place.climate],
        HOUSES: _HOUSES[place.building_style],
    }


def box_text(box: tuple[float, float, float, float]) -> str:
    """A box in pixels of the picture as the model sees it, as the zoom tool takes it."""
    return "[" + ", ".join(str(round(edge)) for edge in box) + "]"


def all_texts() -> list[str]:
    """Every question and answer of a fixed wording, for a tokenizer to learn from."""
    return [*READ, *ATTRIBUTES, BOX, *_TREES.values(), *_HOUSES.values(), "left", "right", "white", "yellow", "none"]


PANORAMA, PHOTO = (8, 16), (9, 13)  # rows x columns in tokens of a view within 100,352 pixels
LEAST_LETTERS_PX = 7.5
FREE = 0.97  # share of a board that nothing may cover


@dataclass(frozen=True)
class ZoomedLine:
    """One line of a sign in a zoom crop; `letters_px` is its height in the original."""

    pixels: np.ndarray
    grid: tuple[int, int]
    line: int
    text: str
    letters_px: float


@dataclass(frozen=True)
class Example:
    """A picture with its perception answers. The place's name and coordinates are not among them."""

    view: np.ndarray
    grid: tuple[int, int]
    answers: dict[str, str]
    box: str  # of the largest sign, in pixels of the view; empty when there is none
    zooms: list[ZoomedLine] = field(default_factory=list)


def cell_of(place: Place) -> tuple[int, int]:
    """The 1-degree cell of a place: what is held out is held out by cells."""
    return int(place.lat // 1), int(place.lon // 1)


def is_held_out(place: Place) -> bool:
    """Every tenth cell is kept for measuring."""
    return random.Random(str(cell_of(place))).random() < 0.1


def clear_images(world: World, index: int) -> list[ImageRecord]:
    """The images of a place in which something can be made out."""
    return [record for record in world.images(index) if record.condition in ("clear", "landmark")]


def original(world: World, record: ImageRecord) -> tuple[Image.Image, list[SeenSign]]:
    """The picture as it is downloaded, and its boards."""
    signs: list[SeenSign] = []
    painted = paint(world, record, signs)
    return Image.open(io.BytesIO(encode(painted))).convert("RGB"), signs


def view_of(picture: Image.Image, is_pano: bool) -> np.ndarray:
    """The picture as the model sees it."""
    rows, columns = PANORAMA if is_pano else PHOTO
    return np.asarray(picture.resize((columns * PATCH, rows * PATCH), Image.Resampling.BICUBIC, reducing_gap=2.0))


def example(world: World, record: ImageRecord, rng: random.Random, pad: bool = True) -> Example:
    """One painted picture; `pad=False` cuts signs with fixed margins instead of random ones."""
    picture, signs = original(world, record)
    place = world.place(record.place)
    grid = PANORAMA if record.is_pano else PHOTO
    scale = grid[1] * PATCH / picture.width, grid[0] * PATCH / picture.height
    whole = [sign for sign in signs if sign.free > 0.9]
    largest = max(whole, key=lambda s: (s.box[2] - s.box[0]) * (s.box[3] - s.box[1]), default=None)
    box = ""
    if largest is not None:
        left, top, right, bottom = largest.box
        box = box_text((left * scale[0], top * scale[1], right * scale[0], bottom * scale[1]))
    zooms = [zoom for sign in signs if sign.free >= FREE for zoom in zooms_of(picture, sign, rng, pad)]
    return Example(view_of(picture, record.is_pano), grid, answers_of(place), box, zooms)


def zooms_of(picture: Image.Image, sign: SeenSign, rng: random.Random, pad: bool) -> list[ZoomedLine]:
    """A zoom crop for each line of a sign that is large enough to be read."""
    zooms = []
    left, top, right, bottom = sign.box
    wide, high = right - left, bottom - top
    for number, text in enumerate(sign.lines):
        letters = letter_px(text, sign.letters_px[number], wide)
        if letters < LEAST_LETTERS_PX:
            continue
        more_x = [(rng.uniform(0.0, 0.15) if pad else 0.06) * wide + 1 for _ in range(2)]
        more_y = [(rng.uniform(0.0, 0.35) if pad else 0.15) * high + 1 for _ in range(2)]
        box = left - more_x[0], top - more_y[0], right + more_x[1], bottom + more_y[1]
        grid = grid_of((box[2] - box[0]) / (box[3] - box[1]))
        cut = picture.crop(fitted(box, grid, picture.size))
        pixels = np.asarray(cut.resize((grid[1] * PATCH, grid[0] * PATCH), Image.Resampling.BICUBIC))
        zooms.append(ZoomedLine(pixels, grid, number, text, round(letters, 2)))
    return zooms


def fitted(
    box: tuple[float, float, float, float], grid: tuple[int, int], size: tuple[int, int]
) -> tuple[int, int, int, int]:
    """The box widened to the grid's shape, inside the picture where it can be."""
    left, top, right, bottom = box
    wide, high, wanted = right - left, bottom - top, grid[1] / grid[0]
    if wide / high < wanted:
        left, right = left - (wanted * high - wide) / 2, right + (wanted * high - wide) / 2
    else:
        top, bottom = top - (wide / wanted - high) / 2, bottom + (wide / wanted - high) / 2
    shift_x = max(0.0, -left) - max(0.0, right - size[0])
    shift_y = max(0.0, -top) - max(0.0, bottom - size[1])
    return round(left + shift_x), round(top + shift_y), round(right + shift_x), round(bottom + shift_y)
