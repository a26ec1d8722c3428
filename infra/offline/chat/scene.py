"""The scene in numbers: light, sharpness, colours, road lines and the side traffic keeps to, from pixels alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from infra.offline.chat.picture import is_panorama
from infra.offline.chat.road import Road, read_road

WORK_PX = 512  # the long side at which colours are measured


@dataclass(frozen=True)
class Scene:
    view: str
    brightness: float  # mean luminance, 0..1
    sharpness: float  # 0 a blur, 1 crisp
    sky: str
    sky_share: float
    green_share: float
    soil_share: float
    hill_share: float
    road_share: float
    building_share: float
    ground: str
    centre: str | None  # colour of the centre line
    edge: str | None
    side: str | None  # left | right
    side_confidence: float
    side_reason: str
    sign: str | None  # background of a direction sign
    landmark: str | None
    walls: str | None = None  # what house fronts are mostly like: red | warm | grey; None where few are seen


def survey(image: Image.Image) -> Scene:
    """Measures a picture at a fixed working size."""
    panorama = is_panorama(*image.size)
    ratio = WORK_PX / max(image.size)
    size = (max(8, round(image.width * ratio)), max(8, round(image.height * ratio)))
    small = np.asarray(image.resize(size, Image.Resampling.BOX), dtype=np.float32) / np.float32(255)
    road = read_road(image, panorama)
    return _describe(small, road, _sharpness(image), panorama)


def _sharpness(image: Image.Image) -> float:
    """How steep the steepest edges are at full size: blur flattens all of them, an empty scene only most."""
    grey = np.asarray(image.convert("L"), dtype=np.float32)
    step = max(1, grey.shape[0] // 500)
    across = np.abs(np.diff(grey[::step], axis=1))
    return float(min(1.0, np.percentile(across, 99.7) / 60))


def _describe(pixels: NDArray[np.float32], road: Road, sharpness: float, panorama: bool) -> Scene:
    height = pixels.shape[0]
    red, green, blue = pixels[..., 0], pixels[..., 1], pixels[..., 2]
    light = pixels.mean(axis=2)
    spread = pixels.max(axis=2) - pixels.min(axis=2)
    upper, lower = slice(0, height // 2), slice(height // 2, height)
    sky_mask = (blue >= red - 0.02) & (blue >= green - 0.02) & (light > 0.35)
    sky_share = float(sky_mask[upper].mean()) / 2
    green_mask = (green > red * 1.05) & (green > blue * 1.12) & (light > 0.06)
    soil_mask = (red > green * 1.06) & (green > blue * 1.06) & (light > 0.15)
    grey_mask = (spread < 0.08) & (light > 0.12) & (light < 0.6)
    middle = slice(int(height * 0.25), int(height * 0.55))
    other = ~(sky_mask | green_mask)[middle]
    ground = pixels[lower][~grey_mask[lower]]
    return Scene(
        view="360-degree panorama" if panorama else "ordinary photo",
        brightness=float(light.mean()),
        sharpness=sharpness,
        sky=_sky_name(pixels[: height // 4]),
        sky_share=sky_share,
        green_share=float(green_mask.mean()),
        soil_share=float(soil_mask[lower].mean()) / 2,
        hill_share=_hills(sky_mask, panorama),
        road_share=float(grey_mask[lower].mean()) / 2,
        building_share=float(other.mean()) * 0.3,
        ground=_ground_name(ground),
        centre=road.centre,
        edge=road.edge,
        side=road.side,
        side_confidence=road.confidence,
        side_reason=road.reason,
        sign=None,
        landmark=None,
        walls=_walls(pixels[middle][other]),
    )


def _walls(fronts: NDArray[np.float32]) -> str | None:
    """The colour of what stands between road and sky and is neither sky nor plant."""
    lit = fronts[(fronts.mean(axis=1) > 0.3) & (fronts.mean(axis=1) < 0.95)]
    if len(lit) < 400:
        return None
    red, green, blue = np.median(lit, axis=0)
    if red > 1.3 * green and red > 1.35 * blue:
        return "red"
    if red > 1.18 * blue:
        return "warm"
    return "grey" if red < 1.08 * blue else None


def _hills(sky: NDArray[np.bool_], panorama: bool) -> float:
    """How much of the view down the street, a little above the horizon, is not sky."""
    if not panorama:
        return 0.0
    height, width = sky.shape
    ahead = sky[int(height * 0.475) : int(height * 0.485), int(width * 0.492) : int(width * 0.508)]
    return float((~ahead).mean()) * 0.1 if ahead.size else 0.0


def _sky_name(top: NDArray[np.float32]) -> str:
    red, _, blue = top.reshape(-1, 3).mean(axis=0)
    light = float(top.mean())
    if light < 0.2:
        return "dark"
    if blue - red > 0.12:
        return "blue"
    return "pale" if light > 0.7 else "grey"


def _ground_name(pixels: NDArray[np.float32]) -> str:
    if len(pixels) < 50:
        return "grey"
    red, green, blue = pixels.reshape(-1, 3).mean(axis=0)
    if min(red, green, blue) > 0.8:
        return "white, perhaps snow"
    if green > red and green > blue * 1.1:
        return "green"
    if red > green * 1.25:
        return "reddish"
    if red > blue * 1.25:
        return "sandy" if red > 0.6 else "brown"
    return "grey"
