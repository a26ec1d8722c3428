"""Marks of a picture by which near-duplicates are found: a perceptual hash, its mirror's, and a light embedding.

The hash is the sign of the 64 lowest frequencies of a 32 x 32 picture's cosine transform against their median (pHash).
The embedding is what a 4 x 4 grid holds: colours, and how strong edges are in eight directions. It needs no model and
tells apart pictures whose low frequencies agree by chance; two pictures are near-duplicates only if both say so.
"""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from tasks.imaging.decode import Pixels

GRID, DIRECTIONS = 4, 8
DIMENSIONS = GRID * GRID * (DIRECTIONS + 3)


@dataclass(frozen=True)
class Marks:
    """What near-duplicates are found by. Hashes are 16 hex digits: 64 bits do not survive as a JSON number."""

    phash: str
    phash_mirrored: str
    embedding: list[float]  # of length 1


def marks_of(pixels: Pixels) -> Marks:
    """The marks of an RGB picture."""
    small = cv2.resize(pixels, (32, 32), interpolation=cv2.INTER_AREA)
    grey = cv2.cvtColor(small, cv2.COLOR_RGB2GRAY).astype(np.float32)
    return Marks(phash_of(grey), phash_of(np.ascontiguousarray(grey[:, ::-1])), embedding_of(pixels).tolist())


def phash_of(grey: NDArray[np.float32]) -> str:
    """The perceptual hash of a grey picture of 32 x 32."""
    low = np.asarray(cv2.dct(grey))[:8, :8].ravel()
    # The first coefficient is the brightness, which says nothing about the picture.
    bits = low > np.median(low[1:])
    bits[0] = False
    return f"{int(''.join('1' if bit else '0' for bit in bits), 2):016x}"


def embedding_of(pixels: Pixels) -> NDArray[np.float32]:
    """Colours and edge directions by the cells of a grid, as a vector of length 1."""
    small = cv2.resize(pixels, (64, 64), interpolation=cv2.INTER_AREA)
    lab = cv2.cvtColor(small, cv2.COLOR_RGB2LAB).astype(np.float32) / 255
    across, down = (cv2.Sobel(lab[..., 0], cv2.CV_32F, *axis) for axis in ((1, 0), (0, 1)))
    strength = np.hypot(across, down)
    direction = ((np.arctan2(down, across) + np.pi) / (2 * np.pi) * DIRECTIONS).astype(np.int64) % DIRECTIONS
    side = 64 // GRID
    cells = []
    for row in range(GRID):
        for column in range(GRID):
            here = slice(row * side, (row + 1) * side), slice(column * side, (column + 1) * side)
            edges = np.bincount(direction[here].ravel(), weights=strength[here].ravel(), minlength=DIRECTIONS)
            colours = lab[here].reshape(-1, 3).mean(axis=0) - 0.5
            cells.append(np.concatenate([np.sqrt(edges / side), 2 * colours]))
    vector = np.concatenate(cells).astype(np.float32)
    length = float(np.linalg.norm(vector))
    return vector / length if length > 0 else np.full(DIMENSIONS, DIMENSIONS**-0.5, np.float32)


def hash_numbers(hashes: list[str]) -> NDArray[np.uint64]:
    """Hashes as 64-bit numbers."""
    return np.array([int(text, 16) for text in hashes], dtype=np.uint64)


def mirrored_embedding(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """The embeddings (one a row) of the same pictures turned left to right."""
    cells = vectors.reshape(-1, GRID, GRID, DIRECTIONS + 3)[:, :, ::-1]
    turned = (DIRECTIONS // 2 - 1 - np.arange(DIRECTIONS)) % DIRECTIONS
    order = np.concatenate([turned, DIRECTIONS + np.arange(3)])
    return np.ascontiguousarray(cells[..., order]).reshape(len(vectors), -1)
