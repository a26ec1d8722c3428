"""A rectangle of the web's map grid: which pixels of which zoom, and where on Earth they lie."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from infra.offline.scenes.projection import unbroken

TILE_PX = 256
EARTH_M = 2 * math.pi * 6_378_137.0  # around the equator, as the projection has it
HIGHEST_LAT = 85.0511


@dataclass(frozen=True)
class View:
    """`width` x `height` pixels at a zoom; `left`, `top` count pixels from the map's north-west corner."""

    zoom: int
    left: float
    top: float
    width: int
    height: int

    @classmethod
    def around(cls, lat: float, lon: float, zoom: int, width: int, height: int) -> Self:
        """The view with a point in its middle."""
        x, y = _map_px(lat, lon, zoom)
        return cls(zoom, round(x - width / 2), round(y - height / 2), width, height)

    @property
    def px_m(self) -> float:
        """Projected metres a pixel is wide; on the ground it is shorter by the cosine of the latitude."""
        return EARTH_M / (TILE_PX << self.zoom)

    @cached_property
    def plane(self) -> tuple[np.ndarray, np.ndarray]:
        """Projected (x, y) of the pixels' centres, in metres, on the plane that the ground is painted on."""
        lon = self.middle[1]
        turned_m = EARTH_M / 360.0 * (unbroken(np.array(lon), lon) - lon)
        x = (self.left + np.arange(self.width) + 0.5) * self.px_m - EARTH_M / 2 + turned_m
        y = EARTH_M / 2 - (self.top + np.arange(self.height) + 0.5) * self.px_m
        both = np.meshgrid(x, y)
        return both[0], both[1]

    def degrees(self, across: np.ndarray, down: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(lat, lon) of pixels counted from the view's corner; a longitude may pass 180."""
        y = math.pi * (1 - 2 * (self.top + np.asarray(down)) / (TILE_PX << self.zoom))
        lon = (self.left + np.asarray(across)) / (TILE_PX << self.zoom) * 360.0 - 180.0
        return np.degrees(np.arctan(np.sinh(y))), lon

    def box(self, pad_px: float = 0.0) -> tuple[float, float, float, float]:
        """(west, south, east, north), with some pixels more on every side."""
        lat, lon = self.degrees(np.array([-pad_px, self.width + pad_px]), np.array([-pad_px, self.height + pad_px]))
        return float(lon[0]), float(lat[1]), float(lon[1]), float(lat[0])

    @cached_property
    def middle(self) -> tuple[float, float]:
        """(lat, lon) of the middle."""
        lat, lon = self.degrees(np.array(self.width / 2), np.array(self.height / 2))
        return float(lat), (float(lon) + 180.0) % 360.0 - 180.0

    @property
    def ground_m(self) -> float:
        """Metres on the ground a pixel in the middle is wide."""
        return self.px_m * math.cos(math.radians(self.middle[0]))

    def pixel(self, lat: np.ndarray, lon: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(across, down) of points from the view's corner, the short way round the Earth."""
        side = TILE_PX << self.zoom
        east = (np.asarray(lon) - self.middle[1] + 180.0) % 360.0 - 180.0 + self.middle[1]
        turns = round((self.left + self.width / 2) / side - (self.middle[1] + 180.0) / 360.0)
        high = np.radians(np.clip(lat, -HIGHEST_LAT, HIGHEST_LAT))
        across = ((east + 180.0) / 360.0 + turns) * side - self.left
        return across, (1 - np.arcsinh(np.tan(high)) / math.pi) / 2 * side - self.top


def _map_px(lat: float, lon: float, zoom: int) -> tuple[float, float]:
    side = TILE_PX << zoom
    high = math.radians(max(-HIGHEST_LAT, min(HIGHEST_LAT, lat)))
    return (lon + 180.0) / 360.0 * side, (1 - math.asinh(math.tan(high)) / math.pi) / 2 * side
