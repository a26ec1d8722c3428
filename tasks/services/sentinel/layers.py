"""What a scene shows of a picture: which pixels were seen, and which of them are clear of clouds."""

import math
from dataclasses import dataclass, replace
from functools import partial

import cv2
import numpy as np
from numpy.typing import NDArray

from schemas.settings.satellite import SatelliteSettings
from tasks.services import ServiceError
from tasks.services.sentinel.grid import Grid
from tasks.services.sentinel.raster import Mask, all_blocks, on_grid, whole
from tasks.services.sentinel.scenes import CLASSES, Scene, UnusableScene
from tasks.services.stac import Stac

# What one file may answer for good. All else may be better later: to go on without the scene would make the picture
# depend on passing trouble.
_THIS_FILE_ONLY = frozenset({"not_found", "rejected", "bad_response", "too_big", "blocked"})


@dataclass(frozen=True)
class Layer:
    """A scene on a grid."""

    scene: Scene
    seen: Mask  # there is data
    clear: Mask  # and it shows the ground

    def without(self, lacking: Mask) -> "Layer":
        """The same, less what its bands turned out to lack."""
        return replace(self, seen=self.seen & ~lacking, clear=self.clear & ~lacking)


async def look(stac: Stac, scene: Scene, grid: Grid, settings: SatelliteSettings) -> Layer:
    """The scene's class map on the grid, or UnusableScene."""
    # Clouds just outside are widened into the picture, and a spot cut by its edge is as wide as it is.
    edge = math.ceil((settings.buffer_m + settings.speck_m) / grid.step_m)
    wider = grid.wider(edge)
    try:
        file = await on_grid(partial(stac.read, scene.hrefs[CLASSES]), wider, scene.epsg)
        if file.level.dtype != np.uint8 or file.level.bands != 1:
            raise UnusableScene("the class map is not one band of 8 bits")
        classes = await file.pixels(all_blocks(wider), whole(wider), nearest=True)
    except ServiceError as error:
        raise lasting(error) from error
    inner = (slice(edge, edge + grid.size),) * 2
    return Layer(scene, (classes != 0)[inner], ~clouds(classes, grid.step_m, settings)[inner])


def lasting(error: ServiceError) -> Exception:
    """UnusableScene for an error that will not pass, else the error itself."""
    if error.kind in _THIS_FILE_ONLY and not error.retryable:
        return UnusableScene(f"{error.kind}: {error.message}")
    return error


def clouds(classes: NDArray[np.uint8], step_m: float, settings: SatelliteSettings) -> Mask:
    """What is masked: spots too small for a cloud are bright roofs and dropped, the rest is widened; no data counts."""
    table = np.zeros(256, dtype=np.uint8)
    table[[number for number in settings.masked_classes if number != 0]] = 1
    masked = cv2.LUT(classes, table)
    speck, buffer = (_disc(metres / max(step_m, 1e-9)) for metres in (settings.speck_m / 2, settings.buffer_m))
    if speck is not None:
        masked = cv2.morphologyEx(masked, cv2.MORPH_OPEN, speck)
    if buffer is not None:
        masked = cv2.dilate(masked, buffer)
    return np.asarray((masked > 0) | (classes == 0))


def _disc(radius_px: float) -> NDArray[np.uint8] | None:
    radius = round(radius_px)
    if radius < 1:
        return None
    return cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1, 2 * radius + 1)).astype(np.uint8)
