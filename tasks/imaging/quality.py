"""What pixels say about a picture's use: size, blur, exposure, compression, share of sky and of road.

Figures only; thresholds are settings of the stage that rejects. Blur and exposure are measured on a picture of at most
`SIDE` pixels, so that they mean the same for every camera.
"""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from tasks.imaging.decode import Encoded, Pixels

SIDE = 1024  # of the measured picture, at most
BLUR_TAPS = 11  # Crete et al. 2007
SMALL = (256, 160)  # where sky and road are looked for
DARK, BRIGHT = 5, 250  # of 255
BLOCK = 8  # a JPEG's

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Quality:
    """The figures of one picture."""

    width: int
    height: int
    blur: float  # 0 sharp to 1 without an edge (Crete et al. 2007)
    brightness: float  # mean, 0 to 1
    contrast: float  # standard deviation, 0 to 0.5
    dark_share: float  # of pixels without light
    bright_share: float  # of pixels without detail in the light
    blockiness: float  # steps at the edges of 8 x 8 blocks against steps inside them; 1 is none
    bits_per_pixel: float  # of the file
    sky_share: float
    road_share: float


def measure(picture: Encoded) -> tuple[Quality, Pixels]:
    """The figures, and the picture at most `SIDE` wide and high that they were measured on."""
    facts = picture.facts
    scale = min(1.0, SIDE / max(facts.width, facts.height))
    size = max(1, round(facts.width * scale)), max(1, round(facts.height * scale))
    full = picture.pixels(least=(size[0], size[1]))
    pixels = full if full.shape[1::-1] == size else cv2.resize(full, size, interpolation=cv2.INTER_AREA)
    pixels = np.asarray(pixels, dtype=np.uint8)
    grey = _grey(pixels)
    sky, road = _sky_and_road(np.asarray(cv2.resize(pixels, SMALL, interpolation=cv2.INTER_AREA), dtype=np.uint8))
    quality = Quality(
        width=facts.width,
        height=facts.height,
        blur=blur_of(grey),
        brightness=float(grey.mean() / 255),
        contrast=float(grey.std() / 255),
        dark_share=float((grey <= DARK).mean()),
        bright_share=float((grey >= BRIGHT).mean()),
        # Blocks are whole only in a picture that was not shrunk while it was decoded.
        blockiness=_blockiness(_grey(full)) if full.shape[1] == facts.width else 1.0,
        bits_per_pixel=8 * len(picture.data) / (facts.width * facts.height),
        sky_share=sky,
        road_share=road,
    )
    return quality, pixels


def _grey(pixels: Pixels) -> NDArray[np.uint8]:
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), dtype=np.uint8)


def blur_of(grey: NDArray[np.uint8]) -> float:
    """How little a second blur takes away (Crete, Dolmiere, Ladret and Nicolas 2007): 0 sharp, 1 blurred or empty."""
    variances = []
    for across in (True, False):
        line = grey.astype(np.float32) if across else grey.T.astype(np.float32)
        if line.shape[1] < 3:
            return 1.0
        softened = cv2.blur(line, (BLUR_TAPS, 1))
        steps, soft_steps = np.abs(np.diff(line, axis=1)), np.abs(np.diff(softened, axis=1))
        total = float(steps.sum())
        lost = float(np.maximum(steps - soft_steps, 0).sum())
        variances.append((total - lost) / total if total > 0 else 1.0)
    return max(variances)


def _blockiness(grey: NDArray[np.uint8]) -> float:
    """Mean step across block edges against the mean step elsewhere, horizontally and vertically."""
    ratios = []
    for line in (grey.astype(np.float32), grey.T.astype(np.float32)):
        steps = np.abs(np.diff(line, axis=1)).mean(axis=0)
        edge = np.arange(len(steps)) % BLOCK == BLOCK - 1
        if edge.sum() < 2:
            return 1.0
        ratios.append(float((steps[edge].mean() + 0.05) / (steps[~edge].mean() + 0.05)))
    return max(ratios)


def _sky_and_road(pixels: Pixels) -> tuple[float, float]:
    """Shares of the picture: smooth bright or blue pixels from the top down, smooth grey ones from the bottom up."""
    hsv = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV).astype(np.int16)
    hue, saturation, value = hsv[..., 0], hsv[..., 1], hsv[..., 2]
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY).astype(np.float32)
    smooth = np.abs(cv2.Laplacian(grey, cv2.CV_32F)) < 12
    blue = (hue > 85) & (hue < 140)
    sky = smooth & (value > 110) & (blue | (saturation < 60))
    road = smooth & (saturation < 60) & (value > 30) & (value < 190)
    run = np.cumprod(sky, axis=0).sum(axis=0)
    up = np.cumprod(road[::-1], axis=0).sum(axis=0)
    height = len(pixels)
    return float(run.mean() / height), float(np.minimum(up, height - run).mean() / height)
