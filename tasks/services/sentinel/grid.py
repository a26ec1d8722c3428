"""The square of ground that a picture shows: pixels on the UTM grid of its middle's zone.

The grid lies on multiples of its pixel's size. Scenes' own grids begin at multiples of 60 m, and their files hold
pixels of 10 m and, made smaller, of 20 m: these are copied as they are within a zone; everything else is resampled.
"""

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray
from pyproj import Transformer

Floats = NDArray[np.float64]
Box = tuple[float, float, float, float]  # west, south, east, north in degrees, west <= east

_FALSE_NORTHING_M = 10_000_000.0  # of the equator, south of it; a multiple of 10 and 20 m
_EDGE_POINTS = 33  # along each side of a square, to find how far it reaches in degrees


@cache
def transformer(source: int, target: int) -> Transformer:
    """Coordinates of one EPSG code as another's; x (east, longitude) first."""
    return Transformer.from_crs(source, target, always_xy=True)


def utm_epsg(lat: float, lon: float) -> int:
    """The EPSG code of the UTM zone a point lies in, with the exceptions of Norway and Svalbard."""
    lon = (lon + 180.0) % 360.0 - 180.0
    zone = int((lon + 180.0) // 6.0) % 60 + 1  # rounding may carry a longitude to 180
    if 56.0 <= lat < 64.0 and 3.0 <= lon < 12.0:
        zone = 32
    if 72.0 <= lat <= 84.0 and 0.0 <= lon < 42.0:
        zone = 31 + 2 * int((lon + 3.0) // 12.0)  # 31, 33, 35 and 37 only
    return (32600 if lat >= 0 else 32700) + zone


def same_zone(epsg: int, other: int) -> bool:
    """Whether two UTM codes are of one zone, be it of either side of the equator: then the same grid goes on."""
    return epsg % 100 == other % 100


def northing_m(metres: float, epsg: int, other: int) -> float:
    """A northing as the other half of the same zone counts it."""
    return metres + _FALSE_NORTHING_M * (other // 100 - epsg // 100)  # 327 is south and counts from there


@dataclass(frozen=True)
class Grid:
    """`size` x `size` pixels of `step_m` metres; `left_m`, `top_m` is the outer corner of the first one."""

    epsg: int
    left_m: float
    top_m: float
    step_m: float
    size: int

    def wider(self, pixels: int) -> "Grid":
        """The same grid with more pixels on every side."""
        more_m = pixels * self.step_m
        return replace(self, left_m=self.left_m - more_m, top_m=self.top_m + more_m, size=self.size + 2 * pixels)

    @property
    def transform(self) -> list[float]:
        """The affine transform from column, row to easting, northing, as rasterio and GDAL's users write it."""
        return [self.step_m, 0.0, self.left_m, 0.0, -self.step_m, self.top_m]

    def centre(self) -> tuple[float, float]:
        """lat, lon of the middle."""
        half = self.size / 2
        lat, lon = self.degrees(np.array([half]), np.array([half]))
        return float(lat[0]), float(lon[0])

    def corners(self) -> list[tuple[float, float]]:
        """lat, lon of the outer corners: north-west, north-east, south-east, south-west."""
        n = float(self.size)
        lat, lon = self.degrees(np.array([0.0, n, n, 0.0]), np.array([0.0, 0.0, n, n]))
        return [(float(a), float(b)) for a, b in zip(lat, lon, strict=True)]

    def degrees(self, columns: Floats, rows: Floats) -> tuple[Floats, Floats]:
        """lat, lon of places on the picture, counted in pixels from its outer corner; lon in [-180, 180)."""
        x, y = self.left_m + columns * self.step_m, self.top_m - rows * self.step_m
        lon, lat = transformer(self.epsg, 4326).transform(x, y)
        return np.asarray(lat), (np.asarray(lon) + 180.0) % 360.0 - 180.0

    def pixels(self, lat: Floats, lon: Floats) -> tuple[Floats, Floats]:
        """Columns and rows, from the outer corner, of places given in degrees."""
        x, y = transformer(4326, self.epsg).transform(lon, lat)
        return (np.asarray(x) - self.left_m) / self.step_m, (self.top_m - np.asarray(y)) / self.step_m

    def boxes(self) -> list[Box]:
        """The boxes in degrees that hold the square: one, or two where it lies across the 180th meridian."""
        along = np.linspace(0.0, float(self.size), _EDGE_POINTS)
        low, high = np.zeros_like(along), np.full_like(along, float(self.size))
        lat, lon = self.degrees(np.concatenate([along, along, low, high]), np.concatenate([low, high, along, along]))
        middle = self.centre()[1]
        near = unwrapped(lon, middle)
        south, north = float(lat.min()), float(lat.max())
        west, east = float(near.min()), float(near.max())
        if west < -180.0:
            return [(west + 360.0, south, 180.0, north), (-180.0, south, east, north)]
        if east > 180.0:
            return [(west, south, 180.0, north), (-180.0, south, east - 360.0, north)]
        return [(west, south, east, north)]


def unwrapped(lon: Floats, near: float) -> Floats:
    """Longitudes the short way round from `near`, so that neighbours stay neighbours across the 180th meridian."""
    return near + (np.asarray(lon) - near + 180.0) % 360.0 - 180.0


def grid_around(
    lat: float, lon: float, metres_per_pixel: float, size: int, east: float = 0.0, north: float = 0.0
) -> Grid:
    """The grid of a picture around a place; `east` and `north` shift its middle, in sides of the picture."""
    side_m = metres_per_pixel * size
    epsg = utm_epsg(lat, lon)
    if east or north:
        # The zone is that of the picture's middle, not of the place.
        x, y = transformer(4326, epsg).transform(lon, lat)
        moved_lon, moved_lat = transformer(epsg, 4326).transform(x + east * side_m, y + north * side_m)
        lat, lon = float(moved_lat), float(moved_lon)
        epsg = utm_epsg(lat, lon)
    x, y = transformer(4326, epsg).transform(lon, lat)
    left = _snapped(x - side_m / 2, metres_per_pixel)
    top = _snapped(y + side_m / 2, metres_per_pixel)
    return Grid(epsg, left, top, metres_per_pixel, size)


def _snapped(metres: float, step_m: float) -> float:
    return math.floor(metres / step_m + 0.5) * step_m
