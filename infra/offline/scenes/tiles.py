"""The MGRS tiles Sentinel-2 products are cut to: 100 km squares of the UTM grid, made 109.8 km wide to overlap."""

import re
from dataclasses import dataclass, field
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
    # West, south, east, north in degrees, a side may lie past 180; and the middle as lat, lon.
    bounds: tuple[float, float, float, float] = field(compare=False)
    centre: tuple[float, float] = field(compare=False)

    @property
    def epsg(self) -> int:
        """The EPSG code of the tile's UTM zone on WGS 84."""
        return (32700 if self.south else 32600) + self.zone

    @cached_property
    def outline(self) -> tuple[np.ndarray, np.ndarray]:
        """(lat, lon) along the border, clockwise from the upper left, eight points a side; lon may pass 180."""
        x, y = _border()
        return to_geographic(self.left_m + x, self.top_m - y, self.zone, self.south)

    def points(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(lat, lon) of a grid of count x count points inside, rows from north to south."""
        step = (np.arange(count) + 0.5) * SIZE_M / count
        x, y = np.meshgrid(self.left_m + step, self.top_m - step)
        return to_geographic(x, y, self.zone, self.south)


def _zone_range(zone: int, band: str) -> tuple[float, float]:
    """West and east of a zone in a band; southern Norway and Svalbard are divided otherwise."""
    odd = {(31, "V"): (0, 3), (32, "V"): (3, 12), (31, "X"): (0, 9), (33, "X"): (9, 21), (35, "X"): (21, 33),
           (37, "X"): (33, 42), (32, "X"): (0, 0), (34, "X"): (0, 0), (36, "X"): (0, 0)}  # fmt: skip
    return odd.get((zone, band), (zone * 6.0 - 186.0, zone * 6.0 - 180.0))


def _border() -> tuple[np.ndarray, np.ndarray]:
    """Metres right of and below the upper left corner, along a tile's border."""
    run = np.linspace(0, SIZE_M, 9)[:-1]
    return (
        np.concatenate([run, np.full(8, SIZE_M), SIZE_M - run, np.zeros(8)]),
        np.concatenate([np.zeros(8), run, np.full(8, SIZE_M), SIZE_M - run]),
    )


@lru_cache(maxsize=120)
def zone_tiles(zone: int, south: bool) -> dict[str, Tile]:
    """All tiles of a zone on one side of the equator, by name: squares that touch the zone and have land near."""
    lowest, highest = (
        (to_utm_row(SOUTHERNMOST_DEG, zone, True), 99) if south else (0, to_utm_row(NORTHERNMOST_DEG, zone, False))
    )
    columns, rows = (part.ravel() for part in np.meshgrid(np.arange(1, 9), np.arange(lowest, highest + 1)))
    corner_x, corner_y = np.array([0, 0, 1, 1, 0.5]) * _SQUARE_M, np.array([0, 1, 1, 0, 0.5]) * _SQUARE_M
    lat, lon = to_geographic(columns[:, None] * _SQUARE_M + corner_x, rows[:, None] * _SQUARE_M + corner_y, zone, south)
    left = columns * _SQUARE_M // _GRID_M * _GRID_M
    top = -(-(rows + 1) * _SQUARE_M // _GRID_M) * _GRID_M
    x, y = _border()
    edge_lat, edge_lon = to_geographic(left[:, None] + x, top[:, None] - y, zone, south)
    half = SIZE_M / 2
    middle_lat, middle_lon = to_geographic(left + half, top - half, zone, south)
    tiles = {}
    for k, (column, row) in enumerate(zip(columns.tolist(), rows.tolist(), strict=True)):
        square_lat = float(lat[k, 4])
        if (square_lat < 0) is not south or not SOUTHERNMOST_DEG <= square_lat <= NORTHERNMOST_DEG:
            continue
        band = _BANDS[min(19, max(0, int((square_lat + 80) // 8)))]
        west, east = _zone_range(zone, band)
        if lon[k].max() <= west or lon[k].min() >= east:
            continue
        bounds = (edge_lon[k].min(), edge_lat[k].min(), edge_lon[k].max(), edge_lat[k].max())
        if not land_near(*bounds):
            continue
        letters = _COLUMNS[(zone - 1) % 3][column - 1] + _ROWS[(row + (5 if zone % 2 == 0 else 0)) % 20]
        name = f"{zone:02d}{band}{letters}"
        centre = (float(middle_lat[k]), float(middle_lon[k]))
        tiles[name] = Tile(name, zone, south, int(left[k]), int(top[k]), tuple(map(float, bounds)), centre)  # type: ignore[arg-type]
    return tiles


def to_utm_row(lat: float, zone: int, south: bool) -> int:
    """The number of the row of squares a latitude lies in."""
    _, northing = to_utm(np.array([lat]), np.array([zone * 6.0 - 183.0]), zone, south)
    return int(northing[0] // _SQUARE_M)


def tile_named(name: str) -> Tile | None:
    """The tile with a name, or None when there is none."""
    match = _NAME.fullmatch(name)
    if not match or not 1 <= int(match[1]) <= 60:
        return None
    return zone_tiles(int(match[1]), match[2] < "N").get(name)


def tiles_in(west: float, south: float, east: float, north: float) -> list[Tile]:
    """Tiles that may touch a box (west <= east, a side may lie past 180), ordered by name."""
    # Near the poles a tile reaches many degrees past its zone.
    reach = 8.0 if max(abs(south), abs(north)) < 70 else 16.0
    zones = {int((lon + 180) // 6) % 60 + 1 for lon in np.arange(west - reach, east + reach + 0.01, 3.0)}
    tiles = []
    for zone in sorted(zones):
        for hemisphere in (False, True):
            # A tile of either hemisphere may reach a little over the equator.
            if (north < -1.5) if not hemisphere else (south > 1.5):
                continue
            tiles += [t for t in zone_tiles(zone, hemisphere).values() if _touches(t, west, south, east, north)]
    return sorted(tiles, key=lambda tile: tile.name)


def _touches(tile: Tile, west: float, south: float, east: float, north: float) -> bool:
    left, low, right, high = tile.bounds
    if low > north or high < south:
        return False
    return any(left + turn <= east and right + turn >= west for turn in (-360, 0, 360))
