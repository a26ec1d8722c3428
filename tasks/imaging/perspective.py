"""Perspective views cut from a panorama: what a camera with straight lines would have seen.

Yaw turns right from the panorama's centre, pitch looks up, roll tips the camera clockwise, the field of view is the
horizontal one between the outer edges of the outermost pixels; pixels are square. A pixel stands for its centre, in
the panorama too: column x of W looks towards ((x + 0.5) / W - 0.5) * 360 degrees.
"""

import math
import threading
from dataclasses import dataclass
from typing import Self

import cv2
import numpy as np
from cachetools import LRUCache, cached
from numpy.typing import NDArray

from tasks.imaging.decode import Encoded, Pixels
from tasks.imaging.panorama import bordered
from tasks.imaging.resample import resized

MIN_FOV, MAX_FOV = 1.0, 170.0  # beyond, the edges are stretched over nearly all of the picture
MIN_SIDE, MAX_SIDE = 16, 8192
_MAX_SAMPLES = 32_000_000
_MAX_FINER = 8
_MAX_CUT = 32_766  # pixels on a side that OpenCV cuts in one go: its maps count in 16 bits
_CACHE_BYTES = 128_000_000
_STRIP_SAMPLES = 500_000  # rays computed at a time: memory stays small whatever the view's size

Maps = tuple[NDArray[np.int16], NDArray[np.uint16]]  # whole pixels, and 1/32 of a pixel, as OpenCV wants them


@dataclass(frozen=True)
class View:
    """Where to look and how large the picture is. Angles in degrees; `ValueError` names what is out of range."""

    yaw_deg: float = 0.0
    pitch_deg: float = 0.0
    fov_deg: float = 90.0
    width: int = 1024
    height: int = 768
    roll_deg: float = 0.0

    def __post_init__(self) -> None:
        for name in ("yaw", "pitch", "fov", "roll"):
            value = getattr(self, f"{name}_deg")
            if not math.isfinite(value):
                raise ValueError(f"{name} {value} is not a number of degrees")
        if not -90 <= self.pitch_deg <= 90:
            raise ValueError(f"pitch {self.pitch_deg:g} is not between -90 (straight down) and 90 (straight up)")
        if not MIN_FOV <= self.fov_deg <= MAX_FOV:
            raise ValueError(f"fov {self.fov_deg:g} is not between {MIN_FOV:g} and {MAX_FOV:g} degrees")
        for name in ("width", "height"):
            side = getattr(self, name)
            if not MIN_SIDE <= side <= MAX_SIDE:
                raise ValueError(f"{name} {side} is not between {MIN_SIDE} and {MAX_SIDE} pixels")
        if self.width * self.height > _MAX_SAMPLES:
            raise ValueError(f"size {self.width}x{self.height} has more than {_MAX_SAMPLES:,} pixels")
        # One direction, one number: 370 degrees and 10 are the same view, and so are 10 and 10.00000000001.
        for name in ("yaw_deg", "roll_deg"):
            object.__setattr__(self, name, turn(getattr(self, name)))
        for name in ("pitch_deg", "fov_deg"):
            object.__setattr__(self, name, round(float(getattr(self, name)), 6) + 0.0)


class Panorama:
    """A full panorama, made ready to cut any number of views from it."""

    def __init__(self, pixels: Pixels) -> None:
        height, width = pixels.shape[:2]
        if abs(width / height - 2.0) > 0.02:
            raise ValueError(f"a picture of {width} x {height} is not a full panorama, which is twice as wide as high")
        self.width, self.height = width, height
        self._pixels = bordered(pixels, 1)  # neighbours for the outermost pixels: around the seam, over the poles

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The panorama in a JPEG or PNG; `BadImage` if it is damaged."""
        return cls(Encoded.open(data).pixels())

    def view(self, view: View, finer: int = 1) -> Pixels:
        """The view's pixels, each the mean of `finer` x `finer` samples; see `fineness`."""
        pixel_map, parts = view_maps(self.width, self.height, view, finer)
        cut = np.asarray(cv2.remap(self._pixels, pixel_map, parts, cv2.INTER_LINEAR), self._pixels.dtype)
        return cut if finer == 1 else resized(cut, (view.width, view.height), cv2.INTER_AREA)

    def fineness(self, view: View) -> int:
        """How many samples each way show all of the panorama that falls into a pixel.

        With fewer, where the panorama is finer than the view, fine patterns turn into coarse ones.
        """
        ahead = self.width / (2 * math.pi) / _focal(view)  # panorama pixels to a pixel in the view's middle
        most = math.isqrt(_MAX_SAMPLES // (view.width * view.height))
        return int(max(1, min(round(ahead), most, _MAX_FINER, _MAX_CUT // max(view.width, view.height))))


def yaw_of_bearing(bearing_deg: float, compass_angle: float) -> float:
    """The yaw that looks towards a compass bearing, in a panorama whose centre looks towards compass_angle."""
    return turn(bearing_deg - compass_angle)


def turn(degrees: float) -> float:
    """The same direction between -180 and 180 degrees, to a millionth."""
    return (round(degrees % 360, 6) + 180) % 360 - 180 + 0.0  # + 0.0: no negative zero


def _focal(view: View) -> float:
    return view.width / 2 / math.tan(math.radians(view.fov_deg) / 2)


def _rotation(view: View) -> NDArray[np.float64]:
    """From the camera (x right, y up, z ahead) to the panorama, for rows of vectors."""

    def about(first: int, second: int, degrees: float) -> NDArray[np.float64]:
        turned = np.eye(3)
        sin, cos = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
        turned[first, first] = turned[second, second] = cos
        turned[first, second], turned[second, first] = sin, -sin
        return turned

    roll, pitch, yaw = about(1, 0, view.roll_deg), about(2, 1, view.pitch_deg), about(2, 0, view.yaw_deg)
    return roll @ pitch @ yaw


@cached(LRUCache(_CACHE_BYTES, getsizeof=lambda maps: maps[0].nbytes + maps[1].nbytes), lock=threading.Lock())
def view_maps(panorama_width: int, panorama_height: int, view: View, finer: int) -> Maps:
    """Where the view's samples lie in the panorama; those of the views last cut are kept."""
    width, height, focal = view.width * finer, view.height * finer, _focal(view) * finer
    right = ((np.arange(width) + 0.5 - width / 2) / focal).astype(np.float32)
    up = ((height / 2 - np.arange(height) - 0.5) / focal).astype(np.float32)
    rotation = _rotation(view)
    pixel_map = np.empty((height, width, 2), np.int16)
    parts = np.empty((height, width), np.uint16)
    rows = max(1, _STRIP_SAMPLES // width)
    for top in range(0, height, rows):
        strip = slice(top, top + rows)
        rays = np.ones((up[strip].size, width, 3), np.float32)
        rays[..., 0], rays[..., 1] = right, up[strip, None]
        x, y, z = np.moveaxis((rays @ rotation).astype(np.float32), -1, 0)
        longitude, latitude = np.arctan2(x, z), np.arctan2(y, np.hypot(x, z))
        column = (longitude / (2 * np.pi) + 0.5) * panorama_width - 0.5
        row = (0.5 - latitude / np.pi) * panorama_height - 0.5
        pixel_map[strip], parts[strip] = cv2.convertMaps(column + 1, row + 1, cv2.CV_16SC2)  # + 1: the border
    return pixel_map, parts
