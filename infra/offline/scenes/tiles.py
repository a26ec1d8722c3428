"""The MGRS tiles Sentinel-2 products are cut to: 100 km squares of the UTM grid, 109.8 km wide, so that they overlap."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from infra.offline.scenes.coast import land_near
from infra.offline.scenes.projection import to_geographic, to_utm

SIZE_M = 109_800
_SQUARE_M = 100_000
_GRID_M = 60  # corners lie on the coarsest pixel grid of the instrument
_BANDS = "CDEFGHJKLMNPQRSTUVWX"
_COLUMNS = ("ABCDEFGH", "JKLMNPQR", "STUVWXYZ")
_ROWS = "ABCDEFGHJKLMNPQRSTUV"
_NAME = re.compile(r"(\d{2})([C-HJ-NP-X])([A-HJ-NP-Z])([A-HJ-NP-V])")
SOUTHERNMOST_DEG, NORTHERNMOST_DEG = -58.0, 80.0


@dataclass(frozen=True)
class Tile:
    """One tile; `left_m` and `top_m` are the UTM coordinates of its upper left corner."""

    name: str  # "32UQD"
    zone: int
    south: bool
    left_m: int
    top_m: int

    @property
    def epsg(self) -> int:
        """The EPSG code of the tile's UTM zone on WGS 84."""
        return (32700 if self.south else 32600) + self.zone

    @cached_property
    def outline(self) -> tuple[np.ndarray, np.ndarray]:
        """(lat, lon) along the border, clockwise from the upper left, nine points a side; lon may pass 180."""
        run = np.linspace(0, SIZE_M, 9)[:-1]
        x = self.left_m + np.concatenate([run, np.full(8, SIZE_M), SIZE_M - run, np.zeros(8)])
        y = self.top_m - np.concatenate([np.zeros(8), run, np.full(8, SIZE_M), SIZE_M - run])
        return to_geographic(x, y, self.zone, self.south)

    def points(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(lat, lon) of a grid of count x count points inside, rows from north to south."""
        step = (np.arange(count) + 0.5) * SIZE_M / count
        x, y = np.meshgrid(self.left_m + step, self.top_m - step)
        return to_geographic(x, y, self.zone, self.south)


def _band(lat: float) -> str:
    return _BANDS[min(19, max(0, int((lat + 80) // 8)))]


def _zone_range(zone: int, band: str) -> tuple[float, float]:
    """West and east of a zone in a band; southern Norway and Svalbard are divided otherwise."""
    odd = {(31, "V"): (0, 3), (32, "V"): (3, 12), (31, "X"): (0, 9), (33, "X"): (9, 21), (35, "X"): (21, 33),
           (37, "X"): (33, 42), (32, "X"): (0, 0), (34, "X"): (0, 0), (36, "X"): (0, 0)}  # fmt: skip
    return odd.get((zone, band), (zone * 6.0 - 186.0, zone * 6.0 - 180.0))


@lru_cache(maxsize=65_536)
def _square(zone: int, column: int, row: int, south: bool) -> Tile | None:
    """The tile of a 100 km square, or None where the square lies outside its zone or has no land near."""
    x = np.array([0, 0, 1, 1, 0.5]) * _SQUARE_M + column * _SQUARE_M
    y = np.array([0, 1, 1, 0, 0.5]) * _SQUARE_M + row * _SQUARE_M
    lat, lon = to_geographic(x, y, zone, south)
    middle = float(lat[4])
    if (middle < 0) is not south or not SOUTHERNMOST_DEG <= middle <= NORTHERNMOST_DEG:
        return None
    band = _band(middle)
    west, east = _zone_range(zone, band)
    if lon.max() <= west or lon.min() >= east or east <= west:
        return None
    left = math.floor(column * _SQUARE_M / _GRID_M) * _GRID_M
    top = math.ceil((row + 1) * _SQUARE_M / _GRID_M) * _GRID_M
    name = f"{zone:02d}{band}{_COLUMNS[(zone - 1) % 3][column - 1]}{_ROWS[(row + (5 if zone % 2 == 0 else 0)) % 20]}"
    tile = Tile(name, zone, south, left, top)
    lats, lons = tile.outline
    return tile if land_near(lons.min(), lats.min(), lons.max(), lats.max()) else None


def tile_named(name: str) -> Tile | None:
    """The tile with a name, or None when there is none."""
    match = _NAME.fullmatch(name)
    if not match or not 1 <= int(match[1]) <= 60 or match[3] not in _COLUMNS[(int(match[1]) - 1) % 3]:
        return None
    zone, south = int(match[1]), match[2] < "N"
    column = _COLUMNS[(zone - 1) % 3].index(match[3]) + 1
    south_deg = _BANDS.index(match[2]) * 8 - 80
    _, northing = to_utm(np.array([south_deg + 4.0]), np.array([zone * 6.0 - 183.0]), zone, south)
    middle = int(northing[0] // _SQUARE_M)
    for row in range(middle - 6, middle + 7):  # letters repeat every 20 squares, a band is 9 high
        if row >= 0:
            tile = _square(zone, column, row, south)
            if tile is not None and tile.name == name:
                return tile
    return None


def tiles_in(west: float, south: float, east: float, north: float) -> list[Tile]:
    """Tiles that may touch a box (west <= east, a side may lie past 180), ordered by name."""
    pad = 1.4
    found = set()
    zones = {int((lon + 180) // 6) % 60 + 1 for lon in np.arange(west - 8, east + 8.01, 3.0)}
    low, high = max(-62.0, south - pad), min(82.0, north + pad)
    for zone in sorted(zones):
        for hemisphere in (False, True):
            a, b = (max(0.0, low), high) if not hemisphere else (low, min(0.0, high))
            if a > b:
                continue
            meridian = zone * 6.0 - 183.0
            _, y = to_utm(np.array([a, b]), np.array([meridian, meridian]), zone, hemisphere)
            for row in range(max(0, int(y[0] // _SQUARE_M) - 1), int(y[1] // _SQUARE_M) + 2):
                for column in range(1, 9):
                    tile = _square(zone, column, row, hemisphere)
                    if tile is not None and _touches(tile, west, south, east, north):
                        found.add(tile)
    return sorted(found, key=lambda tile: tile.name)


def _touches(tile: Tile, west: float, south: float, east: float, north: float) -> bool:
    lat, lon = tile.outline
    if lat.min() > north or lat.max() < south:
        return False
    return any(lon.min() + turn <= east and lon.max() + turn >= west for turn in (-360, 0, 360))
