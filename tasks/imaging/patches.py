"""Marks of parts of a picture, by which copies are found that were cropped, turned a little, framed or shifted.

One hash of the whole picture changes with any of these. Here the surroundings of some corners and blobs (SIFT; Lowe
2004) are hashed, each at its own place and size, so most of them stay. Two pictures that share a hash are candidates;
they are copies if one thumbnail, moved as their common hash says and aligned (ECC; Evangelidis and Psarakis 2008),
correlates with the other.
"""

from dataclasses import dataclass, fields
from typing import Any, Self

import cv2
import numpy as np
from numpy.typing import NDArray

from tasks.imaging.decode import Pixels
from tasks.imaging.hashes import hash_numbers, phash_of

SIDE = 256  # of the picture in which parts are looked for
LEAST_SIZE = SIDE / 40  # of a corner or blob: smaller ones do not outlive another resolution
RADIUS = 4.0  # of the hashed part, in sizes of its corner
MOST_PATCHES = 16
LEAST_CONTRAST = 8.0  # of 255: a plain wall looks like any other
THUMBNAIL = 64  # its longer side
EDGE = 0.08  # of a side, left out of the comparison: frames, and the corners of a turned picture
LEAST_OVERLAP = 0.5  # of the thumbnail
MOST_TURN, MOST_SCALE, MOST_SHEAR = 10.0, 1.6, 0.05  # a copy is turned and scaled, hardly bent
WRAPS = 0.02  # how far a panorama may be from 2:1


@dataclass(frozen=True)
class Patches:
    """The hashed parts of one picture, as they are stored, and its thumbnail."""

    patches: list[str]
    patches_mirrored: list[str]  # of the same parts turned left to right
    patch_places: list[float]  # x, y and radius of each, in widths of the picture
    thumbnail: list[int]  # grey levels by rows
    aspect: float  # height by width

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> Self:
        """As they were stored."""
        return cls(**{field.name: row[field.name] for field in fields(cls)})

    def grey(self) -> NDArray[np.float32]:
        """The thumbnail as a picture."""
        width, _ = _thumbnail_size(self.aspect)
        return np.array(self.thumbnail, np.float32).reshape(-1, width)


def patches_of(pixels: Pixels) -> Patches:
    """The parts of an RGB picture by which its copies are found."""
    height, width = pixels.shape[:2]
    scale = SIDE / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    grey = cv2.cvtColor(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), cv2.COLOR_RGB2GRAY)
    keypoints = cv2.SIFT.create(contrastThreshold=0.02, edgeThreshold=12).detect(grey, None)
    strongest = sorted(keypoints, key=lambda keypoint: -keypoint.response * keypoint.size**0.5)
    plain, turned, places = [], [], list[float]()
    seen: set[tuple[int, ...]] = set()
    for corner in strongest:
        (x, y), radius = corner.pt, corner.size * RADIUS
        at = round(x), round(y), round(corner.size)  # one blob may come with several directions
        inside = min(x, y, size[0] - x, size[1] - y) >= 0.75 * radius
        if corner.size < LEAST_SIZE or at in seen or not inside:
            continue
        seen.add(at)
        factor = 16 / radius
        to_patch = np.array([[factor, 0, 16 - x * factor], [0, factor, 16 - y * factor]], np.float32)
        patch = cv2.warpAffine(grey, to_patch, (32, 32), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
        if patch.std() < LEAST_CONTRAST:
            continue
        shown = patch.astype(np.float32)
        plain.append(phash_of(shown))
        turned.append(phash_of(np.ascontiguousarray(shown[:, ::-1])))
        places += [x / size[0], y / size[0], radius / size[0]]
        if len(plain) == MOST_PATCHES:
            break
    aspect = height / width
    small = cv2.resize(grey, _thumbnail_size(aspect), interpolation=cv2.INTER_AREA)
    return Patches(plain, turned, places, [int(value) for value in small.ravel()], aspect)


def _thumbnail_size(aspect: float) -> tuple[int, int]:
    """Width and height."""
    longer = max(1.0, aspect)
    return max(8, round(THUMBNAIL / longer)), max(8, round(THUMBNAIL * aspect / longer))


def correlation_of_copies(left: Patches, two: Patches, mirrored: bool, distance: int) -> float:
    """How well one picture, moved onto the other, correlates with it: 1 for a copy, 0 where none fits."""
    hashes = hash_numbers(left.patches), hash_numbers(two.patches_mirrored if mirrored else two.patches)
    if not hashes[0].size or not hashes[1].size:
        return 0.0
    bits = np.bitwise_count(hashes[0][:, None] ^ hashes[1][None])
    pairs = np.argwhere(bits <= distance)
    pairs = pairs[np.argsort(bits[pairs[:, 0], pairs[:, 1]], kind="stable")][:3]
    first, second = left.grey(), two.grey()
    places = np.array(two.patch_places, np.float64).reshape(-1, 3)
    if mirrored:
        second = np.ascontiguousarray(second[:, ::-1])
        places[:, 0] = 1 - places[:, 0]
    own = np.array(left.patch_places, np.float64).reshape(-1, 3)
    around = abs(left.aspect - 0.5) < WRAPS and abs(two.aspect - 0.5) < WRAPS
    return max((_aligned(first, second, own[a], places[b], around) for a, b in pairs.tolist()), default=0.0)


def _aligned(
    first: NDArray[np.float32],
    two: NDArray[np.float32],
    at: NDArray[np.float64],
    there: NDArray[np.float64],
    wraps: bool,
) -> float:
    """The correlation of the thumbnails, the place `at` of the first moved onto the place `there` of the second."""
    scale = there[2] / at[2] * two.shape[1] / first.shape[1]
    if wraps and abs(there[2] / at[2] - 1) < 0.15 and first.shape == two.shape:
        # A panorama closes around: a part that left on one side came back on the other.
        first = np.roll(first, round((there[0] - at[0]) * first.shape[1]), axis=1)
        at, scale = np.array([there[0], at[1], at[2]]), 1.0
    shift = there[:2] * two.shape[1] - scale * at[:2] * first.shape[1]
    warp = np.array([[scale, 0, shift[0]], [0, scale, shift[1]]], np.float32)
    mask = np.zeros(two.shape, np.uint8)
    rows, columns = (max(1, round(EDGE * side)) for side in two.shape)
    mask[rows:-rows, columns:-columns] = 255
    stop = cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 60, 1e-4
    try:
        correlation, moved = cv2.findTransformECC(first, two, warp, cv2.MOTION_AFFINE, stop, mask, 3)
    except cv2.error:  # it does not converge: they do not fit
        return 0.0
    return float(correlation) if _is_copy(np.asarray(moved, np.float64), first.shape, mask) else 0.0


def _is_copy(warp: NDArray[np.float64], shape: tuple[int, ...], mask: NDArray[np.uint8]) -> bool:
    """Whether the movement is one that copies have, and enough of the pictures was compared."""
    across, down = warp[:, 0], warp[:, 1]
    widths = np.linalg.norm(across), np.linalg.norm(down)
    if min(widths) * MOST_SCALE < 1 or max(widths) > MOST_SCALE or abs(widths[0] / widths[1] - 1) > 0.1:
        # Thumbnails of one height differ in scale by how they were cropped.
        return False
    turn = np.degrees(np.arctan2(across[1], across[0]))
    sheared = abs(across @ down) / (widths[0] * widths[1])
    there = cv2.warpAffine(mask, warp, shape[::-1], flags=cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP)
    return bool(abs(turn) <= MOST_TURN and sheared <= MOST_SHEAR and (there > 0).mean() >= LEAST_OVERLAP)
