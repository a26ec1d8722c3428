"""Colours: scenes brought to each other's lightness where they overlap, and reflectance shown as 8 bits.

Reflectance is kept as a whole number, ten thousandths, as the provider stores it; 0 means no data.
"""

from collections.abc import Sequence

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from tasks.services.sentinel.raster import Mask, Rect

Reflectance = NDArray[np.uint16]  # rows x columns x (red, green, blue)
UNIT = 10_000
VISUAL_WHITE = 0.3558  # the reflectance that is full white in the provider's own 8-bit picture
_STRIDE = 4  # of the pixels compared: neighbours tell the same
_FEWEST = 100  # pixels; with fewer in common two scenes are not compared
_DARK = 50  # in deep shadow a ratio says nothing
_BELOW_ZERO, _MOST_BELOW = 200, 0.05  # reflectance below -0.02 stands in a few shadows, never in a twentieth of a view
_HOLD = 0.02  # how much a scene resists being changed, against what its overlaps say


def from_bands(stored: Sequence[NDArray[np.uint16]], offset: int) -> Reflectance:
    """Reflectance from red, green and blue as stored; at least 1 where all three have data."""
    colours = np.empty((*stored[0].shape, 3), dtype=np.uint16)
    known = np.ones(stored[0].shape, dtype=np.bool_)
    for k, band in enumerate(stored):
        np.subtract(np.maximum(band, offset + 1), offset, out=colours[..., k])
        known &= band > 0
    colours[~known] = 0
    return colours


def is_subtracted_twice(stored: Sequence[NDArray[np.uint16]], offset: int) -> bool:
    """Whether so many pixels would fall well below zero that the archive must have subtracted the offset already."""
    if not offset:
        return False
    known = [band[band > 0] for band in stored]
    return any(band.size and np.mean(band < offset - _BELOW_ZERO) > _MOST_BELOW for band in known)


def from_visual(shown: NDArray[np.uint8]) -> Reflectance:
    """Reflectance from the provider's 8-bit picture, which is linear up to its white."""
    table = np.rint(np.arange(256) / 255 * VISUAL_WHITE * UNIT).astype(np.uint16)
    colours = table[np.maximum(shown, 1)]
    colours[(shown == 0).all(axis=2)] = 0
    return colours


def gains(
    layers: Sequence[Reflectance], clear: Sequence[Mask], max_gain: float, rects: Sequence[Rect] | None = None
) -> NDArray[np.float64]:
    """For each layer a factor of red, green and blue that makes overlaps agree; the first layer stays as it is.

    Where two layers overlap clearly, the logarithm of their ratio (median over the pixels) is what their gains should
    differ by. All overlaps together are solved by least squares, each as heavy as the root of its pixels. `rects` says
    which part of the picture each layer is; masks are of the whole picture.
    """
    count = len(layers)
    factors = np.ones((count, 3))
    rects = rects or [(slice(0, mask.shape[0]), slice(0, mask.shape[1])) for mask in clear]
    rows, wanted = [], []
    for i in range(count):
        for j in range(i + 1, count):
            ratio = _log_ratio(layers[i], rects[i], layers[j], rects[j], clear[i], clear[j])
            if ratio is not None:
                row = np.zeros(count)
                row[i], row[j] = -ratio[1], ratio[1]
                rows.append(row)
                wanted.append(ratio[0] * ratio[1])
    if not rows:
        return factors
    hold = np.eye(count) * _HOLD
    hold[0, 0] = 1e6
    solved = np.linalg.lstsq(np.vstack([*rows, hold]), np.vstack([*wanted, np.zeros((count, 3))]), rcond=None)[0]
    limit = np.log(max_gain)
    return np.asarray(np.exp(np.clip(solved - solved[0], -limit, limit)))


def _log_ratio(
    own: Reflectance, here: Rect, other: Reflectance, there: Rect, clear: Mask, other_clear: Mask
) -> tuple[NDArray[np.float64], float] | None:
    """(log of one / other by colour, weight), or None where they hardly overlap."""
    both = [slice(max(a.start, b.start), min(a.stop, b.stop), _STRIDE) for a, b in zip(here, there, strict=True)]
    if any(part.start >= part.stop for part in both):
        return None
    a, b = (
        layer[tuple(slice(p.start - r.start, p.stop - r.start, _STRIDE) for p, r in zip(both, rect, strict=True))]
        for layer, rect in ((own, here), (other, there))
    )
    shared = clear[both[0], both[1]] & other_clear[both[0], both[1]]
    shared &= (a.min(axis=2) > _DARK) & (b.min(axis=2) > _DARK)
    count = int(shared.sum())
    if count < _FEWEST:
        return None
    ratio = np.log(a[shared] / b[shared])
    return np.median(ratio, axis=0), float(np.sqrt(count * _STRIDE**2 / clear.size))


def scaled(values: Reflectance, gain: NDArray[np.float64]) -> Reflectance:
    """Reflectance times a gain for each colour; 0 stays 0, all else at least 1."""
    if np.allclose(gain, 1.0, atol=1e-4):
        return values
    rescaled = np.empty_like(values)
    numbers = np.arange(65_536, dtype=np.float64)
    for k in range(3):
        table = np.clip(np.rint(numbers * gain[k]), 1, 65_535).astype(np.uint16)
        table[0] = 0
        rescaled[..., k] = table[values[..., k]]
    return rescaled


def shown(values: Reflectance, white: float, gamma: float) -> NDArray[np.uint8]:
    """8 bits for the eye: 255 (reflectance / white) ^ (1 / gamma), the same for every picture; 0 only for no data."""
    share = np.clip(np.arange(65_536) / (white * UNIT), 0.0, 1.0)
    table = np.clip(np.rint(255.0 * share ** (1.0 / gamma)), 1, 255).astype(np.uint8)
    table[0] = 0
    return table[values]


def jpeg(pixels: NDArray[np.uint8], quality: int) -> bytes:
    """A JPEG without metadata, colours at full resolution: roofs and fields are single pixels here."""
    return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=quality, colorsubsampling="444"))
