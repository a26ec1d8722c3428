"""Pictures for models and pages: within a pixel budget, cut from the original, without metadata.

Everything here is a pure function of bytes and gives the same bytes every time, because the lake names
pictures by their sha256. Decoding is in `decode`, panoramas in `panorama`, metadata in `metadata`.
"""

import base64
import math
import threading
from collections.abc import Sequence

import cv2
from cachetools import LRUCache, cached

from tasks.imaging.decode import MAX_DECODED_PIXELS, BadImage, BadImageKind, Encoded, ImageFacts, Pixels, inspect, jpeg
from tasks.imaging.panorama import STORED_QUALITY, equirectangular
from tasks.imaging.resample import resized, shrink

__all__ = [
    "MAX_DECODED_PIXELS",
    "STORED_QUALITY",
    "VIEW_QUALITY",
    "BadImage",
    "BadImageKind",
    "ImageFacts",
    "RecentPictures",
    "box_on_original",
    "covered",
    "cut_view",
    "equirectangular",
    "inspect",
    "model_view",
    "region_view",
    "thumbnail",
    "to_data_uri",
    "view_scale",
]

VIEW_QUALITY = 90
RECENT_BYTES = 64_000_000  # of decoded pictures that regions were cut from


def _decoded(data: bytes) -> Pixels:
    """Upright RGB, not to be written to."""
    pixels = Encoded.open(data).pixels()
    pixels.flags.writeable = False
    return pixels


class RecentPictures:
    """Pictures decoded a moment ago: agents look at several regions of one picture, and several agents at it."""

    def __init__(self, limit_bytes: int = RECENT_BYTES) -> None:
        kept: LRUCache[bytes, Pixels] = LRUCache(limit_bytes, getsizeof=lambda pixels: pixels.nbytes)
        # With a condition, those who ask for a picture that is being decoded wait for it.
        self.decoded = cached(kept, key=lambda data: data, condition=threading.Condition())(_decoded)


RECENT = RecentPictures()


def model_view(data: bytes, max_pixels: int = 2_000_000, min_pixels: int = 40_000) -> tuple[bytes, float]:
    """A JPEG within a model's pixel budget, upright and without metadata, and its scale against the original."""
    picture = Encoded.open(data)
    scale = view_scale(picture.facts.width, picture.facts.height, max_pixels, min_pixels)
    return jpeg(_scaled(picture, scale), VIEW_QUALITY), scale


def view_scale(width: int, height: int, max_pixels: int = 2_000_000, min_pixels: int = 40_000) -> float:
    """The factor that brings width x height between min_pixels and max_pixels; 1.0 when it already is."""
    pixels = width * height
    if pixels > max_pixels:
        return math.sqrt(max_pixels / pixels)
    if pixels < min_pixels:
        return math.sqrt(min_pixels / pixels)
    return 1.0


def box_on_original(
    bbox_on_view: tuple[float, float, float, float], scale: float, width: int, height: int
) -> tuple[int, int, int, int]:
    """The pixels of a width x height original under a box (x1, y1, x2, y2) drawn on its view, clamped to it.

    Corners may come in any order. The result holds at least one pixel and covers the whole box.
    `ValueError` when the box is not made of finite numbers or lies outside the picture.
    """
    if not all(math.isfinite(edge) for edge in bbox_on_view):
        raise ValueError("the box holds a number that is not finite")
    x1, y1, x2, y2 = (edge / scale for edge in bbox_on_view)
    left, right = sorted((x1, x2))
    top, bottom = sorted((y1, y2))
    if left >= width or top >= height or right <= 0 or bottom <= 0:
        raise ValueError(f"the box lies outside the {width} x {height} picture")
    # A hair of tolerance: 300 * s / s may come back as 300.00000000000006 and must not cost a pixel.
    left_px = min(max(math.floor(left + 1e-6), 0), width - 1)
    top_px = min(max(math.floor(top + 1e-6), 0), height - 1)
    right_px = max(min(math.ceil(right - 1e-6), width), left_px + 1)
    bottom_px = max(min(math.ceil(bottom - 1e-6), height), top_px + 1)
    return left_px, top_px, right_px, bottom_px


def region_view(
    data: bytes,
    bbox_on_view: tuple[float, float, float, float],
    scale: float,
    max_pixels: int = 2_000_000,
    min_pixels: int = 40_000,
    recent: RecentPictures = RECENT,
) -> bytes:
    """A JPEG cut from the original picture under a box drawn on its view, within a model's pixel budget."""
    pixels = recent.decoded(data)
    left, top, right, bottom = box_on_original(bbox_on_view, scale, pixels.shape[1], pixels.shape[0])
    return cut_view(pixels[top:bottom, left:right].copy(), max_pixels, min_pixels)


def cut_view(cut: Pixels, max_pixels: int, min_pixels: int) -> bytes:
    """A JPEG of pixels cut from a picture, within a model's pixel budget."""
    height, width = cut.shape[:2]
    factor = view_scale(width, height, max_pixels, min_pixels)
    size = _size(width, height, factor)
    if factor > 1.0:
        cut = resized(cut, size, cv2.INTER_CUBIC)
    elif factor < 1.0:
        cut = shrink(cut, size)
    return jpeg(cut, VIEW_QUALITY)


def thumbnail(data: bytes, max_side: int = 320, quality: int = 78, finer: int = 2) -> bytes:
    """A small JPEG whose longer side is at most max_side, decoded at least `finer` times as large."""
    picture = Encoded.open(data)
    scale = min(1.0, max_side / max(picture.facts.width, picture.facts.height))
    return jpeg(_scaled(picture, scale, finer), quality)


def covered(data: bytes, boxes: Sequence[Sequence[float]]) -> bytes:
    """The picture as a JPEG with boxes (left, top, right, bottom in pixels) filled with grey."""
    pixels = Encoded.open(data).pixels().copy()
    for left, top, right, bottom in boxes:
        pixels[max(0, math.floor(top)) : math.ceil(bottom), max(0, math.floor(left)) : math.ceil(right)] = 127
    return jpeg(pixels, STORED_QUALITY)


def to_data_uri(jpeg: bytes) -> str:
    """A JPEG as a data URI, as chat messages and single-file pages carry it."""
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode("ascii")


def _scaled(picture: Encoded, scale: float, finer: int = 2) -> Pixels:
    size = _size(picture.facts.width, picture.facts.height, scale)
    if scale == 1.0:
        return picture.pixels()
    if scale > 1.0:
        return resized(picture.pixels(), size, cv2.INTER_CUBIC)
    # The decoder's own scaling is coarser than ours.
    pixels = picture.pixels(least=(finer * size[0], finer * size[1]))
    return pixels if pixels.shape[:2] == size[::-1] else shrink(pixels, size)


def _size(width: int, height: int, scale: float) -> tuple[int, int]:
    # Enlarging rounds up to reach the minimum, shrinking rounds down to stay within the maximum.
    fit = math.ceil if scale > 1.0 else math.floor
    return max(1, fit(width * scale)), max(1, fit(height * scale))
