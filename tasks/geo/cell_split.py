"""Which cells are for training, validation and the benchmark, and how far apart those keep."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from schemas.settings.plan import MOST_BUFFER_KM, SplitShares
from tasks.geo.atlas import outlines
from tasks.geo.boundaries import COLUMNS, ROWS, country_of, land_squares, square_of
from tasks.geo.distance import EARTH_RADIUS_KM, distance_km
from tasks.geo.seeded_random import key, uniform

SPLITS = ("train", "validation", "benchmark")
CELL_ROWS, CELL_COLUMNS = 180, 360
CELLS = CELL_ROWS * CELL_COLUMNS
SQUARES = ROWS // CELL_ROWS  # of the border index, along a side of a cell
NARROW = 5  # a country no wider than this many buffers may have too little room between its own cells,
ROOM = 0.5  # which is less than this share of its land
PROBES = 60  # points along a side of its box, to find that share
CHUNK_POINTS = 256  # whose distances to all cells are computed at once
SEA = -1  # in the place of a split: nothing to keep clear of

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Splits = NDArray[np.int8]


def cell_number(lat: Floats, lon: Floats) -> Ints:
    """Cells as numbers, row by row from the south-west; the same cells as `tasks.geo.distance.cell_of`."""
    row = np.minimum(np.floor(lat) + 90, CELL_ROWS - 1).astype(np.int64)
    column = np.minimum(np.floor(lon) + 180, CELL_COLUMNS - 1).astype(np.int64)
    return np.asarray(row * CELL_COLUMNS + column)


def cell_corner(cell: Ints) -> tuple[Ints, Ints]:
    """South-west corner of cells: latitude, longitude."""
    return cell // CELL_COLUMNS - 90, cell % CELL_COLUMNS - 180


def distance_to_cells_km(lat: Floats, lon: Floats, cells: Ints) -> Floats:
    """How far each point is at least from the nearest of these cells: 0 inside one, infinite where there are none.

    Taken from below as in `keeps_clear`: what it calls far away is.
    """
    nearest = np.full(len(lat), np.inf)
    south, west = cell_corner(cells)
    for start in range(0, len(lat) if len(cells) else 0, CHUNK_POINTS):
        part = slice(start, start + CHUNK_POINTS)
        up = np.maximum(np.maximum(south - lat[part, None], lat[part, None] - south - 1), 0)
        east_of = (lon[part, None] - west) % 360
        turn = np.where(east_of <= 1, 0, np.minimum(east_of - 1, 360 - east_of))
        sine = np.cos(np.radians(lat[part, None])) * np.sin(np.radians(np.minimum(turn, 90)))
        nearest[part] = np.maximum(np.radians(up), np.arcsin(sine)).min(axis=1) * EARTH_RADIUS_KM
    return nearest


def split_of_cells(seed: int, shares: SplitShares, buffer_km: float) -> Splits:
    """For every cell of the Earth the place of its split in SPLITS. It depends on nothing but these and the cell.

    A country so small that the buffer between its own cells would take most of its land has them all in one split.
    """
    splits = split_of_lone_cells(seed, shares)
    for cells in joined_cells(buffer_km):
        splits[list(cells)] = splits[cells[0]]
    return splits


def split_of_lone_cells(seed: int, shares: SplitShares) -> Splits:
    """The same, each cell for itself."""
    chance = uniform(key("split", seed), np.arange(CELLS))
    bounds = np.cumsum([shares.train, shares.validation])
    return np.searchsorted(bounds, chance, side="right").astype(np.int8)


def rejoined(seed: int, shares: SplitShares, buffer_km: float) -> Ints:
    """The joined cells that, each for itself, would be of several splits."""
    splits = split_of_lone_cells(seed, shares)
    parted = [cells for cells in joined_cells(buffer_km) if len(set(splits[list(cells)].tolist())) > 1]
    return np.array([cell for cells in parted for cell in cells], dtype=np.int64)


@cache
def joined_cells(buffer_km: float) -> tuple[tuple[int, ...], ...]:
    """Cells that have one split: those of every country too narrow for the buffer, lowest number first."""
    joined: list[frozenset[int]] = []
    for country in _small_countries():
        cells = country.cells
        if country.width_km <= NARROW * buffer_km and country.room(buffer_km) < ROOM:
            touching = [other for other in joined if other & cells]
            joined = [other for other in joined if not other & cells] + [cells.union(*touching)]
    return tuple(sorted(tuple(sorted(cells)) for cells in joined))


@dataclass(frozen=True)
class _Small:
    """A country in several cells that may be too narrow for some buffer; `lat`, `lon` are points on its land."""

    width_km: float
    cells: frozenset[int]
    lat: Floats
    lon: Floats

    def room(self, buffer_km: float) -> float:
        """The share of its land that places can have if no two of its cells are of one split."""
        splits = np.full(CELLS, SEA, dtype=np.int8)
        splits[sorted(self.cells)] = np.arange(len(self.cells))
        return float(keeps_clear_of_land(self.lat, self.lon, splits, buffer_km).mean())


@cache
def _small_countries() -> list[_Small]:
    """All such countries."""
    shape = outlines()
    codes, of_region = np.unique(shape.country, return_inverse=True)
    of_ring = of_region[shape.ring_region]
    low, high = np.full((len(codes), 2), np.inf), np.full((len(codes), 2), -np.inf)
    for axis, line in enumerate((shape.lat, shape.lon)):
        np.minimum.at(low[:, axis], of_ring, np.minimum.reduceat(line, shape.start[:-1]))
        np.maximum.at(high[:, axis], of_ring, np.maximum.reduceat(line, shape.start[:-1]))
    width_km = distance_km(low[:, 0], low[:, 1], high[:, 0], high[:, 1])
    small = []
    for country in np.flatnonzero(
        (width_km <= NARROW * MOST_BUFFER_KM) & (np.floor(low) != np.floor(high)).any(axis=1)
    ):
        spans = [slice(shape.start[r], shape.start[r + 1]) for r in np.flatnonzero(of_ring == country).tolist()]
        rings = [np.column_stack([shape.lat[span], shape.lon[span]]) for span in spans]
        # So small a country has no cell all to itself: its outline, walked in small steps, comes by every one.
        steps = np.linspace(0, 1, 101)[:, None, None]
        points = np.vstack([(ring[:-1] + steps * (ring[1:] - ring[:-1])).reshape(-1, 2) for ring in rings])
        cells = frozenset(np.unique(cell_number(points[:, 0], points[:, 1])).tolist())
        if len(cells) > 1:
            grid = np.meshgrid(*(np.linspace(low[country, axis], high[country, axis], PROBES) for axis in (0, 1)))
            lat, lon = (side.ravel() for side in grid)
            own = country_of(lat, lon) == codes[country]
            # Of islets that no point of the grid meets, the outline stands for the land.
            lat, lon = (lat[own], lon[own]) if own.sum() >= PROBES else points.T
            inside = np.isin(cell_number(lat, lon), sorted(cells))
            small.append(_Small(float(width_km[country]), cells, lat[inside], lon[inside]))
    return small


def keeps_clear(lat: Floats, lon: Floats, splits: Splits, buffer_km: float) -> NDArray[np.bool_]:
    """Whether each point is at least `buffer_km` from every cell of another split, land or sea.

    Two points of different splits of which one keeps clear are then further apart than the buffer, wherever and by
    whom they were drawn.
    """
    if (splits == splits[0]).all():
        return np.ones(len(lat), dtype=bool)

    def split(row: Ints, column: Ints) -> Splits:
        return np.asarray(splits[row * CELL_COLUMNS + column])

    cell = cell_number(lat, lon)
    return _is_clear(lat, lon, splits[cell], cell, 1, split, buffer_km)


def keeps_clear_of_land(lat: Floats, lon: Floats, splits: Splits, buffer_km: float) -> NDArray[np.bool_]:
    """Whether each point on land is at least `buffer_km` from all land in cells of other splits.

    For places on small islands, which have nothing but sea around them. Such places keep the buffer among themselves,
    and to all points that keep clear of whole cells.
    """

    def split(row: Ints, column: Ints) -> Splits:
        of_cell = splits[row // SQUARES * CELL_COLUMNS + column // SQUARES]
        return np.where(land_squares()[row * COLUMNS + column], of_cell, np.int8(SEA))

    return _is_clear(lat, lon, splits[cell_number(lat, lon)], square_of(lat, lon), SQUARES, split, buffer_km)


def _is_clear(
    lat: Floats,
    lon: Floats,
    own: Splits,
    at: Ints,
    per_degree: int,
    split: Callable[[Ints, Ints], Splits],
    buffer_km: float,
) -> NDArray[np.bool_]:
    """Whether each point, of split `own` in box `at`, is `buffer_km` from every box of another split.

    Distances to boxes are taken from below: along the meridian to the box's parallel, and across to the great circle
    of its meridian, whichever is more.
    """
    clear = np.ones(len(lat), dtype=bool)
    if buffer_km <= 0 or not len(lat):
        return clear
    rows, columns, side = 180 * per_degree, 360 * per_degree, 1 / per_degree
    row, column = at // columns, at % columns
    south, west = row * side - 90, column * side - 180
    radius = np.degrees(buffer_km / EARTH_RADIUS_KM)
    # Longitude degrees that may lie within the buffer, at the point of the band that is nearest to a pole.
    polar = np.cos(np.radians(np.minimum(np.abs(lat).max() + radius, 90)))
    reach = np.sin(np.radians(radius)) / max(polar, 1e-9)
    sideways = columns // 2 if reach >= 1 else int(np.ceil(np.degrees(np.arcsin(reach)) / side))
    upwards = int(np.ceil(radius / side))
    for up in range(-upwards, upwards + 1):
        band = np.clip(row + up, 0, rows - 1)
        away = {-1: lat - (south + (up + 1) * side), 0: 0.0 * lat, 1: south + up * side - lat}[int(np.sign(up))]
        up_km = np.radians(away) * EARTH_RADIUS_KM
        for along in range(-sideways, sideways + 1):
            if along == 0:
                across_km = np.zeros(len(lat))
            else:
                turn = np.where(along > 0, west + along * side - lon, lon - (west + (along + 1) * side))
                sine = np.cos(np.radians(lat)) * np.sin(np.radians(np.clip(turn, 0, 90)))
                across_km = np.arcsin(sine) * EARTH_RADIUS_KM
            other = split(band, (column + along) % columns)
            clear &= (other == own) | (other == SEA) | (np.maximum(up_km, across_km) >= buffer_km)
    return clear
