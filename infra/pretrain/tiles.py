"""A panorama as small JPEGs in one file: a zoom decodes the few tiles it touches instead of eight million pixels.

Tiles begin at multiples of the JPEG's own blocks, so they hold what one large JPEG would, but for the colour of a few
pixels at their edges.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from infra.offline.render import encode
from tasks.agent.picture import Picture
from tasks.imaging import images
from tasks.imaging.decode import Encoded

SIDE = 256
SUFFIX = ".tiles"


def write_tiles(path: Path, picture: Image.Image, view: bytes, scale: float) -> None:
    """The picture's tiles and its view, in one file that appears whole."""
    parts = [view]
    for top in range(0, picture.height, SIDE):
        for left in range(0, picture.width, SIDE):
            box = (left, top, min(left + SIDE, picture.width), min(top + SIDE, picture.height))
            parts.append(encode(picture.crop(box)))
    head = json.dumps(
        {"width": picture.width, "height": picture.height, "scale": scale, "sizes": [len(one) for one in parts]}
    ).encode()
    partial = path.with_suffix(".partial")
    partial.write_bytes(struct.pack("<I", len(head)) + head + b"".join(parts))
    partial.rename(path)


@dataclass(frozen=True)
class TiledPicture(Picture):
    """A picture whose original lies in tiles."""

    sizes: tuple[int, int] = (0, 0)  # of the original, width and height
    tiles: tuple[bytes, ...] = ()

    @cached_property
    def _cut(self) -> dict[tuple[float, float, float, float], bytes]:
        return {}

    def region(self, box: tuple[float, float, float, float]) -> bytes:
        if box not in self._cut:  # the rollouts of a group mostly look at the same
            self._cut[box] = self._region(box)
        return self._cut[box]

    def _region(self, box: tuple[float, float, float, float]) -> bytes:
        width, height = self.sizes
        left, top, right, bottom = images.box_on_original(box, self.scale, width, height)
        across = -(-width // SIDE)
        rows = []
        for row in range(top // SIDE, (bottom - 1) // SIDE + 1):
            tiles = range(row * across + left // SIDE, row * across + (right - 1) // SIDE + 1)
            rows.append(np.concatenate([Encoded.open(self.tiles[n]).pixels() for n in tiles], axis=1))
        x, y = left // SIDE * SIDE, top // SIDE * SIDE
        cut = np.concatenate(rows)[top - y : bottom - y, left - x : right - x]
        return images.cut_view(np.ascontiguousarray(cut), self.max_pixels, self.min_pixels)


def read_tiles(path: Path, max_pixels: int, min_pixels: int) -> TiledPicture:
    """The picture of a file."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<I", data)
    head = json.loads(data[4 : 4 + length])
    at, parts = 4 + length, []
    for size in head["sizes"]:
        parts.append(data[at : at + size])
        at += size
    facts = images.inspect(parts[0])
    return TiledPicture(
        b"", parts[0], head["scale"], facts.width, facts.height, max_pixels, min_pixels,
        (head["width"], head["height"]), tuple(parts[1:]),
    )  # fmt: skip
