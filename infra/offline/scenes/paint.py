"""A scene's pixels: ground, clouds, shadows and the swath's edge, as stored numbers of every band and as classes."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from infra.offline.scenes.clouds import CIRRUS, HIGH, MEDIUM, cirrus, climate, sun, weather
from infra.offline.scenes.ground import ground_classes, paint_ground
from infra.offline.scenes.orbit import SWATH_KM, Scene, across_km
from infra.offline.scenes.projection import central_meridian, to_mercator, unbroken
from infra.offline.scenes.tiles import Tile
from infra.offline.scenes.window import Window, blend, noise, step_up

NO_DATA, SHADOW, CLOUD_MEDIUM, CLOUD_HIGH, THIN_CIRRUS = 0, 3, 8, 9, 10
_BRIGHT = 0.3558  # the reflectance that is full white in the `visual` asset
_SAMPLES = 32
_FLEECE = 0.11  # what fine noise adds to a cloud at most
_CLOUD, _VEIL = np.array([1.0, 1.005, 1.02], np.float32), np.array([0.4, 0.4, 0.4], np.float32)


@dataclass(frozen=True)
class Pixels:
    """Painted pixels: surface reflectance (red, green, blue) in ten thousandths, 0 where nothing was seen."""

    stored: np.ndarray  # uint16
    kind: np.ndarray  # uint8 scene class

    @property
    def reflectance(self) -> np.ndarray:
        """The same as a share of the light."""
        return self.stored.astype(np.float32) / 10_000

    def band(self, name: str, offset: int) -> np.ndarray:
        """uint16 numbers of B02, B03 or B04 as stored: reflectance x 10,000 plus the baseline's offset, 0 unseen."""
        values = self.stored[..., {"B04": 0, "B03": 1, "B02": 2}[name]]
        return np.where(values == 0, values, values + np.uint16(offset))

    def visual(self) -> np.ndarray:
        """uint8 true colour, rows x columns x 3, 0 where unseen."""
        return np.asarray(_VISUAL[self.stored])


# From 1 on, for 0 means unseen; 20,000 is the brightest cloud.
_VISUAL = np.clip(np.rint(np.arange(20_001) / 10_000 * (255 / _BRIGHT)), 1, 255).astype(np.uint8)
_VISUAL[0] = 0


@dataclass(frozen=True)
class _Sky:
    """Clouds, what casts shadows here, thin high cloud, and what the swath saw, at the pixels of a window."""

    cloud: np.ndarray
    caster: np.ndarray
    veil: np.ndarray
    seen: np.ndarray

    def mark(self, kind: np.ndarray) -> np.ndarray:
        """Classes of the ground with those of the sky over them."""
        kind[self.caster > MEDIUM + 0.02] = SHADOW
        kind[self.veil > CIRRUS] = THIN_CIRRUS
        kind[self.cloud > MEDIUM] = CLOUD_MEDIUM
        kind[self.cloud > HIGH] = CLOUD_HIGH
        kind[~self.seen] = NO_DATA
        return kind


def _swath(scene: Scene, window: Window) -> np.ndarray:
    return np.asarray(np.abs(window.spread(across_km(scene.orbit, *window.node_degrees))) <= SWATH_KM / 2)


def _sky(seed: int, scene: Scene, window: Window, seen: np.ndarray) -> _Sky:
    lat, lon = window.node_degrees
    nx, ny = window.node_plane
    light = sun(*scene.tile.centre, scene.at)
    climate_there = climate(lat, lon)
    cloud = window.spread(weather(seed, scene.orbit, scene.number, nx, ny) + climate_there)
    # A shadow lies away from the sun, by the cloud's height over the sun's slope; in metres of the Mercator plane.
    drop_m = 2_000.0 / math.tan(math.radians(max(20.0, light[0]))) / math.cos(math.radians(float(lat.mean())))
    to_x, to_y = drop_m * math.sin(math.radians(light[1])), drop_m * math.cos(math.radians(light[1]))
    caster = window.spread(weather(seed, scene.orbit, scene.number, nx + to_x, ny + to_y) + climate_there)
    if max(cloud.max(), caster.max()) > -_FLEECE - 0.1:  # else the sky is blue, whatever single puffs add
        x, y = window.plane
        fleece = 0.07 * noise(seed, "fleece", x, y, 240.0) + 0.04 * noise(seed, "puff", x, y, 90.0)
        cloud += fleece
        caster += fleece
    return _Sky(cloud, caster, window.spread(cirrus(seed, scene.orbit, scene.number, nx, ny)), seen)


def paint_classes(seed: int, scene: Scene, window: Window) -> np.ndarray:
    """The scene classes of a window, without painting what they mark."""
    seen = _swath(scene, window)
    if not seen.any():
        return np.zeros(seen.shape, np.uint8)
    ground = ground_classes(seed, scene.tile, window, scene.at.timetuple().tm_yday)
    return _sky(seed, scene, window, seen).mark(ground)


def paint_window(seed: int, scene: Scene, window: Window) -> Pixels:
    """The pixels of a window of a scene."""
    seen = _swath(scene, window)
    if not seen.any():
        return Pixels(np.zeros((*seen.shape, 3), np.uint16), np.zeros(seen.shape, np.uint8))
    light = sun(*scene.tile.centre, scene.at)
    ground = paint_ground(seed, scene.tile, window, scene.at.timetuple().tm_yday, light)
    sky = _sky(seed, scene, window, seen)
    colour = ground.colour
    if sky.caster.max() > -0.04:
        shade = step_up(sky.caster, -0.04, 0.14)
        colour = colour * (1 - 0.58 * shade)[..., None]
    if sky.veil.max() > CIRRUS - 0.35:
        thin = step_up(sky.veil, CIRRUS - 0.35, CIRRUS + 0.6) * 0.5
        colour = blend(colour, _VEIL, thin * np.float32(0.6))
    if sky.cloud.max() > -0.06:
        opaque = step_up(sky.cloud, -0.06, 0.26)
        relief = 1 + 0.10 * np.clip(sky.cloud - sky.caster, -1, 1) + 0.06 * window.soft(seed, "billow", 700.0)
        white = (0.30 + 0.46 * step_up(sky.cloud, -0.05, 0.7)) * relief
        colour = blend(colour, white[..., None] * _CLOUD, opaque)
    stored = np.clip(np.rint(colour * np.float32(10_000)), 1, 16_000).astype(np.uint16)
    stored[~seen] = 0
    return Pixels(np.ascontiguousarray(stored), sky.mark(ground.kind.copy()))


@lru_cache(maxsize=100_000)
def cloud_percent(seed: int, scene: Scene) -> float:
    """The percentage of the seen pixels under cloud of any kind, counted on a net of points."""
    seen = _seen_samples(scene.tile, scene.orbit)
    if not seen.any():
        return 0.0
    x, y, climate_there = _samples(scene.tile)
    covered = (weather(seed, scene.orbit, scene.number, x, y) + climate_there > MEDIUM) | (
        cirrus(seed, scene.orbit, scene.number, x, y) > CIRRUS
    )
    return round(100.0 * float(covered[seen].mean()), 6)


@lru_cache(maxsize=512)
def _samples(tile: Tile) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(Mercator x, y, what the climate adds to clouds) at a tile's points: the same for every pass."""
    lat, lon = tile.points(_SAMPLES)
    return *to_mercator(lat, unbroken(lon, central_meridian(tile.zone))), climate(lat, lon)


@lru_cache(maxsize=2_048)
def _seen_samples(tile: Tile, orbit: int) -> np.ndarray:
    return np.asarray(np.abs(across_km(orbit, *tile.points(_SAMPLES))) <= SWATH_KM / 2)
