"""A scene's pixels: ground, clouds, shadows and the swath's edge, as stored numbers of every band and as classes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

import numpy as np
from PIL import Image

from infra.offline.scenes.clouds import CIRRUS, HIGH, MEDIUM, cirrus, density, sun
from infra.offline.scenes.ground import paint_ground
from infra.offline.scenes.orbit import SWATH_KM, Scene, across_km, scenes_of
from infra.offline.scenes.projection import to_mercator
from infra.offline.scenes.tiles import SIZE_M, tile_named
from infra.offline.scenes.window import Window, blend, noise, step_up
from infra.offline.world import World

NO_DATA, SHADOW, CLOUD_MEDIUM, CLOUD_HIGH, THIN_CIRRUS = 0, 3, 8, 9, 10
_BRIGHT = 0.3558  # the reflectance that is full white in the `visual` asset
_SAMPLES = 48
_CLOUD, _VEIL = np.array([1.0, 1.005, 1.02], np.float32), np.array([0.4, 0.4, 0.4], np.float32)


@dataclass(frozen=True)
class Pixels:
    """Painted pixels: surface reflectance (red, green, blue) and scene class; class 0 was not seen."""

    reflectance: np.ndarray
    kind: np.ndarray

    def band(self, name: str, offset: int) -> np.ndarray:
        """uint16 numbers of B02, B03 or B04 as stored: reflectance x 10,000 plus the baseline's offset, 0 unseen."""
        values = self.reflectance[..., {"B04": 0, "B03": 1, "B02": 2}[name]]
        stored = np.clip(np.rint(values * 10_000), 1, 20_000).astype(np.uint16) + np.uint16(offset)
        return np.where(self.kind == NO_DATA, np.uint16(0), stored)

    def visual(self) -> np.ndarray:
        """uint8 true colour, rows x columns x 3, 0 where unseen."""
        shown = np.clip(np.rint(self.reflectance * (255 / _BRIGHT)), 1, 255).astype(np.uint8)
        shown[self.kind == NO_DATA] = 0
        return shown


def paint_window(seed: int, scene: Scene, window: Window) -> Pixels:
    """The pixels of a window of a scene."""
    lat, lon = window.node_degrees
    light = sun(*scene.tile.centre, scene.at)
    seen = np.abs(window.spread(across_km(scene.orbit, lat, lon))) <= SWATH_KM / 2
    if not seen.any():
        return Pixels(np.zeros((*seen.shape, 3), np.float32), np.zeros(seen.shape, np.uint8))
    ground = paint_ground(seed, scene.tile, window, scene.at.timetuple().tm_yday, light)
    x, y = window.plane
    nx, ny = window.node_plane
    fleece = 0.07 * noise(seed, "fleece", x, y, 240.0) + 0.04 * noise(seed, "puff", x, y, 90.0)
    cloud = window.spread(density(seed, scene.orbit, scene.number, nx, ny, lat, lon)) + fleece
    # A shadow lies away from the sun, by the cloud's height over the sun's slope; in metres of the Mercator plane.
    drop_m = 2_000.0 / math.tan(math.radians(max(20.0, light[0]))) / math.cos(math.radians(float(lat.mean())))
    to_x, to_y = drop_m * math.sin(math.radians(light[1])), drop_m * math.cos(math.radians(light[1]))
    caster = window.spread(density(seed, scene.orbit, scene.number, nx + to_x, ny + to_y, lat, lon)) + fleece
    veil = window.spread(cirrus(seed, scene.orbit, scene.number, nx, ny))

    opaque = step_up(cloud, -0.06, 0.26)
    shade = step_up(caster, -0.04, 0.14)
    thin = step_up(veil, CIRRUS - 0.35, CIRRUS + 0.6) * 0.5
    relief = 1 + 0.10 * np.clip(cloud - caster, -1, 1) + 0.06 * window.soft(seed, "billow", 700.0)
    white = (0.30 + 0.46 * step_up(cloud, -0.05, 0.7)) * relief
    colour = ground.colour * (1 - 0.58 * shade)[..., None]
    colour = blend(colour, _VEIL, thin * np.float32(0.6))
    colour = blend(colour, white[..., None] * _CLOUD, opaque)
    colour = np.clip(colour, 0.0001, 1.6).astype(np.float32, copy=False)

    kind = ground.kind.copy()
    kind[(caster > MEDIUM + 0.02) & (kind != NO_DATA)] = SHADOW
    kind[veil > CIRRUS] = THIN_CIRRUS
    kind[cloud > MEDIUM] = CLOUD_MEDIUM
    kind[cloud > HIGH] = CLOUD_HIGH
    kind[~seen] = NO_DATA
    return Pixels(colour, kind)


@lru_cache(maxsize=100_000)
def cloud_percent(seed: int, scene: Scene) -> float:
    """The percentage of the seen pixels under cloud of any kind, counted on a net of points."""
    lat, lon = scene.tile.points(_SAMPLES)
    seen = np.abs(across_km(scene.orbit, lat, lon)) <= SWATH_KM / 2
    if not seen.any():
        return 0.0
    x, y = to_mercator(lat, lon)
    covered = (density(seed, scene.orbit, scene.number, x, y, lat, lon) > MEDIUM) | (
        cirrus(seed, scene.orbit, scene.number, x, y) > CIRRUS
    )
    return round(100.0 * float(covered[seen].mean()), 6)


def scene_preview(world: World, tile: str, date: str, size: int = 512) -> Image.Image:
    """A whole scene in true colour, `size` pixels wide: the pass over a tile nearest to a date (`2023-06-15`).

    KeyError when the world has no such tile.
    """
    found = tile_named(tile)
    if found is None:
        raise KeyError(f"tile {tile}: no such tile with land")
    day = datetime.strptime(date, "%Y-%m-%d").date()
    best = min(scenes_of(found), key=lambda s: (abs((s.at.date() - day).days), -s.coverage, s.id))
    step = SIZE_M / size
    pixels = paint_window(
        world.seed, best, Window(found.zone, found.south, found.left_m, found.top_m, step, size, size)
    )
    return Image.fromarray(pixels.visual())
