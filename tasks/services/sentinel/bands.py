"""What a scene's bands show of a part of a grid."""

import asyncio
from functools import partial

import numpy as np

from tasks.services import ServiceError
from tasks.services.errors import gather_all
from tasks.services.sentinel.grid import Grid
from tasks.services.sentinel.layers import lasting
from tasks.services.sentinel.raster import Mask, OnGrid, Rect, on_grid
from tasks.services.sentinel.scenes import BANDS, VISUAL, Scene, UnusableScene
from tasks.services.sentinel.tone import Reflectance, from_bands, from_visual, is_subtracted_twice
from tasks.services.stac import Stac


class BadBands(Exception):
    """A scene whose class map could be read and whose bands cannot."""

    def __init__(self, scene_id: str, why: str) -> None:
        super().__init__(scene_id, why)
        self.scene_id, self.why = scene_id, why


async def read_bands(stac: Stac, scene: Scene, grid: Grid, blocks: Mask, rect: Rect, assets: str) -> Reflectance:
    """A scene's reflectance on a part of the grid, in all tiles that hold what is needed; BadBands if there is none."""

    async def read_band(name: str) -> np.ndarray:
        file: OnGrid = await on_grid(partial(stac.read, scene.hrefs[name]), grid, scene.epsg)
        wanted = (np.dtype(np.uint8), 3) if assets == "visual" else (np.dtype(np.uint16), 1)
        if (file.level.dtype, file.level.bands) != wanted:
            raise UnusableScene(f"{name} is {file.level.bands} x {file.level.dtype}")
        return await file.pixels(blocks, rect)

    try:
        stored = await gather_all(read_band(name) for name in ((VISUAL,) if assets == "visual" else BANDS))
    except UnusableScene as why:
        raise BadBands(scene.id, str(why)) from why
    except ServiceError as error:
        final = lasting(error)
        raise (BadBands(scene.id, str(final)) if isinstance(final, UnusableScene) else error) from error
    if assets == "visual":
        return await asyncio.to_thread(from_visual, stored[0])
    if await asyncio.to_thread(is_subtracted_twice, stored, scene.offset):
        raise BadBands(scene.id, f"pixels far below zero without {scene.offset}: the archive has subtracted it already")
    return await asyncio.to_thread(from_bands, stored, scene.offset)
