"""Making pictures smaller: close to Lanczos in looks, several times quicker.

OpenCV's cubic interpolation is quick but reads four pixels however much smaller the picture gets, so fine patterns
turn into coarse ones (aliasing). A short low-pass filter before it prevents that. Its taps are those that bring
filter and interpolation together nearest to the ideal low-pass, in the least squares sense, for a picture whose power
falls off like natural images' does.
"""

import functools
import os

import cv2
import numpy as np
from numpy.typing import NDArray

from tasks.imaging.decode import Pixels

# So Ray tells a worker how many cores it has. OpenCV would take all of them, and the workers wait for each other.
if os.environ.get("OMP_NUM_THREADS", "").isdecimal():
    cv2.setNumThreads(int(os.environ["OMP_NUM_THREADS"]))

_STRIP_ROWS = 128  # what is filtered at a time stays in the processor's cache
_CUBIC = -0.75  # OpenCV's parameter of the cubic kernel


def shrink(pixels: Pixels, size: tuple[int, int], around: bool = False) -> Pixels:
    """The picture at a smaller size (width, height). `pixels` are used up: the filter works in place.

    With `around` it is a full panorama: left and right edge are neighbours, and over a pole lies the other side.
    """
    factors = max(1, int(pixels.shape[1] / size[0] / 2)), max(1, int(pixels.shape[0] / size[1] / 2))
    if factors != (1, 1):  # far smaller: plain averages first, down to two or three times the size
        smaller = pixels.shape[1] // factors[0], pixels.shape[0] // factors[1]
        pixels = resized(pixels, smaller, cv2.INTER_AREA)
    scale_x, scale_y = pixels.shape[1] / size[0], pixels.shape[0] / size[1]
    across, down = low_pass(round(scale_x, 3)), low_pass(round(scale_y, 3))
    if across.size > 1 or down.size > 1:
        _filter(pixels, across, down, around)
    small = resized(pixels, size, cv2.INTER_CUBIC)
    if around:
        small[:, 0] = _edge_column(pixels, scale_x, size[1])
        small[:, -1] = _edge_column(pixels[:, ::-1], scale_x, size[1])
    return small


def resized(pixels: Pixels, size: tuple[int, int], how: int) -> Pixels:
    """OpenCV's own resizing, to (width, height)."""
    return np.asarray(cv2.resize(pixels, size, interpolation=how), np.uint8)


@functools.lru_cache(maxsize=256)
def low_pass(scale: float) -> NDArray[np.float32]:
    """The filter's taps for a picture that gets `scale` times smaller; a single 1 when none is needed."""
    if scale < 1.11:  # the interpolation alone is nearest to the ideal: taps would be below 0.004
        return np.ones(1, np.float32)
    reach = round(scale)  # more taps would gain less than the JPEG coding loses
    frequency = (np.arange(256) + 0.5) / 512  # cycles per pixel, up to the finest pattern there can be
    power = frequency**-2.0
    passed = frequency <= 0.5 / scale
    spectra = _cubic_spectra()
    # With taps c around a middle of 1 - 2 sum(c) the filter's response is 1 + response @ c.
    response = 2 * (np.cos(2 * np.pi * np.outer(frequency, np.arange(1, reach + 1))) - 1)
    total = (spectra**2).sum(axis=0)
    left = (response * (power * total)[:, None]).T @ response
    right = response.T @ (power * (passed * spectra[2] - total))
    side = np.linalg.solve(left, right).round(4)  # rounded: the same on every machine
    return np.concatenate([side[::-1], [1 - 2 * side.sum()], side]).astype(np.float32)


@functools.lru_cache(maxsize=1)
def _cubic_spectra() -> NDArray[np.float64]:
    """The cubic kernel's spectrum over the base band (row 2) and the two bands on either side of it."""
    frequency = (np.arange(256) + 0.5) / 512
    at = (np.arange(-200, 200) + 0.5) / 100
    kernel = _cubic_kernel(at)
    bands = [frequency + band for band in range(-2, 3)]
    return np.array([(kernel * np.cos(2 * np.pi * np.outer(band, at))).sum(axis=1) / 100 for band in bands])


def _cubic_kernel(at: NDArray[np.float64]) -> NDArray[np.float64]:
    x, a = np.abs(at), _CUBIC
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _filter(pixels: Pixels, across: NDArray[np.float32], down: NDArray[np.float32], around: bool) -> None:
    height, width = pixels.shape[:2]
    x, y = across.size // 2, down.size // 2
    above, below = pixels[:y][::-1].copy(), pixels[height - y :][::-1].copy()
    if around:
        above, below = np.roll(above, width // 2, axis=1), np.roll(below, width // 2, axis=1)
    if around and x:
        # OpenCV's filters know no border that wraps around: both edges are filtered once more, side by side.
        columns = np.arange(-2 * x, 2 * x) % width
        seam = np.concatenate([above[:, columns], pixels[:, columns], below[:, columns]])
        seam = np.asarray(cv2.sepFilter2D(seam, -1, across, down), np.uint8)[y : y + height]
    spare = [np.empty((_STRIP_ROWS + 2 * y, width, 3), np.uint8) for _ in range(2)]
    done = (slice(0, 0), spare[1][:0])
    for number, top in enumerate(range(0, height, _STRIP_ROWS)):
        end = min(top + _STRIP_ROWS, height)
        part = pixels[max(0, top - y) : end + y]
        if top == 0:
            part = np.concatenate([above, part])
        if end + y > height:
            part = np.concatenate([part, below])[: end - top + 2 * y]
        filtered = spare[number % 2][: part.shape[0]]
        cv2.sepFilter2D(part, -1, across, down, dst=filtered)
        pixels[done[0]] = done[1]  # only now: the next strip has looked at its last rows
        done = slice(top, end), filtered[y : y + end - top]
    pixels[done[0]] = done[1]
    if around and x:
        pixels[:, width - x :], pixels[:, :x] = seam[:, x : 2 * x], seam[:, 2 * x : 3 * x]


def _edge_column(pixels: Pixels, scale: float, height: int) -> Pixels:
    """The first column of the shrunken picture, with the last column as the first one's neighbour."""
    centre = 0.5 * scale - 0.5
    first = int(centre) - 1
    taps = np.arange(first, first + 4)
    weights = _cubic_kernel(taps - np.float64(centre)).astype(np.float32)
    column = pixels[:, taps % pixels.shape[1]].astype(np.float32).transpose(0, 2, 1) @ weights
    resized = cv2.resize(column[:, None, :], (1, height), interpolation=cv2.INTER_CUBIC)
    return resized[:, 0].round().clip(0, 255).astype(np.uint8)
