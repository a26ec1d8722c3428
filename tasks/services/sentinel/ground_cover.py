"""What the ground around a point is covered with, as Sentinel-2 sees it.

Water, plants, snow and bare ground are the provider's scene classes. It has none for towns: of the ground without
plants that is built up whose light is grey. Sand and soil are redder than they are blue, roofs and streets hardly.
"""

from dataclasses import dataclass
from functools import partial

import cv2
import numpy as np
from numpy.typing import NDArray

from schemas.settings.satellite import SatelliteSettings
from tasks.services import ServiceError, Stac
from tasks.services.sentinel.bands import BadBands, read_bands
from tasks.services.sentinel.grid import Grid, grid_around
from tasks.services.sentinel.layers import lasting
from tasks.services.sentinel.raster import all_blocks, on_grid, whole
from tasks.services.sentinel.scenes import CLASSES, Scene, UnusableScene
from tasks.services.sentinel.search import find_scenes, newest_processing
from tasks.services.sentinel.tone import UNIT, Reflectance, jpeg, shown

STEP_M, SIZE = 20.0, 128  # of the square that is read: the classes' own resolution, 2.56 km
NEAR_M = 400.0
TRIES = 4  # scenes, the clearest first
CLEAR = 0.8  # share of the square from which a scene needs no better one
_PLANTS, _BARE, _WATER, _SNOW = 4, 5, 6, 11
_UNKNOWN = (0, 1, 2, 3, 7, 8, 9, 10)  # no data, saturated, shadow, unclassified, clouds
_GREY = 0.17  # (red - blue) / (red + blue) below which bare ground is taken for built up
_DARK = 0.045  # red reflectance of plants below which they are woods


@dataclass(frozen=True)
class GroundCover:
    """Shares of the ground that can be seen, within `NEAR_M` of the point and in the whole square."""

    near: dict[str, float]
    around: dict[str, float]
    clear: float  # share of the square that is not under cloud
    captured_on: str
    pixels: Reflectance  # of the square, north up


@dataclass(frozen=True)
class SentinelGround:
    """The ground anywhere on Earth, from an archive of scenes."""

    stac: Stac
    settings: SatelliteSettings

    async def cover(self, lat: float, lon: float) -> GroundCover | None:
        """What is there; none where no scene shows it."""
        return await ground_cover(self.stac, lat, lon, self.settings)


async def ground_cover(stac: Stac, lat: float, lon: float, settings: SatelliteSettings) -> GroundCover | None:
    """The cover around a point from the clearest of a few scenes; none where no scene shows the point itself."""
    grid = grid_around(lat, lon, STEP_M, SIZE)
    scenes, _, _ = await find_scenes(stac, grid, settings)
    best: tuple[float, Scene, NDArray[np.uint8]] | None = None
    for scene in sorted(newest_processing(scenes), key=lambda one: (one.cloud_percent, one.id))[:TRIES]:
        try:
            classes = await _read_classes(stac, scene, grid)
        except UnusableScene:
            continue
        clear = float((~np.isin(classes, _UNKNOWN)).mean())
        if best is None or clear > best[0]:
            best = clear, scene, classes
        if clear >= CLEAR:
            break
    if best is None:
        return None
    clear, scene, classes = best
    try:
        pixels = await read_bands(stac, scene, grid, all_blocks(grid), whole(grid), settings.assets)
    except BadBands:
        return None
    kinds = cover_classes(classes, pixels)
    near = disc(SIZE, NEAR_M / STEP_M)
    if not (kinds[near] != "").any():
        return None
    return GroundCover(shares(kinds[near]), shares(kinds), round(clear, 3), f"{scene.captured_at:%Y-%m-%d}", pixels)


async def _read_classes(stac: Stac, scene: Scene, grid: Grid) -> NDArray[np.uint8]:
    try:
        file = await on_grid(partial(stac.read, scene.hrefs[CLASSES]), grid, scene.epsg)
        if file.level.dtype != np.uint8 or file.level.bands != 1:
            raise UnusableScene("the class map is not one band of 8 bits")
        return np.asarray(await file.pixels(all_blocks(grid), whole(grid), nearest=True), np.uint8)
    except ServiceError as error:
        raise lasting(error) from error


def as_jpeg(cover: GroundCover, settings: SatelliteSettings) -> bytes:
    """The square as a picture for the eye, each pixel four wide."""
    return jpeg(shown(cover.pixels, settings.white, settings.gamma).repeat(4, 0).repeat(4, 1), settings.jpeg_quality)


COVERS = ("water", "woods", "plants", "built_up", "bare", "snow")


def cover_classes(classes: NDArray[np.uint8], pixels: Reflectance) -> NDArray[np.str_]:
    """One of COVERS for each pixel, empty where the ground cannot be seen."""
    light = cv2.blur(pixels.astype(np.float32) / UNIT, (3, 3))  # a roof is smaller than a pixel, a town is not
    red, blue = light[..., 0], light[..., 2]
    grey = (red - blue) / np.maximum(red + blue, 1e-6) < _GREY
    found = np.full(classes.shape, "", dtype="<U8")
    found[classes == _WATER] = "water"
    found[classes == _SNOW] = "snow"
    found[classes == _PLANTS] = "plants"
    found[(classes == _PLANTS) & (red < _DARK)] = "woods"
    found[classes == _BARE] = "bare"
    found[(classes == _BARE) & grey] = "built_up"
    found[pixels[..., 0] == 0] = ""
    return found


def shares(kinds: NDArray[np.str_]) -> dict[str, float]:
    """The share of each of COVERS in what can be seen."""
    seen = max(1, int((kinds != "").sum()))
    return {name: round(float((kinds == name).sum()) / seen, 3) for name in COVERS}


def disc(size: int, radius_px: float) -> NDArray[np.bool_]:
    """The pixels within a radius of the middle of a square."""
    away = np.arange(size) - (size - 1) / 2
    return np.asarray(np.hypot(away[:, None], away[None]) <= radius_px)
