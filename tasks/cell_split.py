"""Which cells are for training, validation and the benchmark, and how far apart those keep."""

import numpy as np
from numpy.typing import NDArray

from schemas.settings.plan import SplitShares
from tasks.chance import key, uniform
from tasks.geo import EARTH_RADIUS_KM

SPLITS = ("train", "validation", "benchmark")
CELL_ROWS, CELL_COLUMNS = 180, 360
CELLS = CELL_ROWS * CELL_COLUMNS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def cell_number(lat: Floats, lon: Floats) -> Ints:
    """Cells as numbers, row by row from the south-west; the same cells as `tasks.geo.cell_of`."""
    row = np.minimum(np.floor(lat) + 90, CELL_ROWS - 1).astype(np.int64)
    column = np.minimum(np.floor(lon) + 180, CELL_COLUMNS - 1).astype(np.int64)
    return row * CELL_COLUMNS + column


def cell_corner(cell: Ints) -> tuple[Ints, Ints]:
    """South-west corner of cells: latitude, longitude."""
    return cell // CELL_COLUMNS - 90, cell % CELL_COLUMNS - 180


def split_of_cells(seed: int, shares: SplitShares) -> NDArray[np.int8]:
    """For every cell of the Earth the place of its split in SPLITS. It depends on nothing but seed, shares and cell."""
    chance = uniform(key("split", seed), np.arange(CELLS))
    bounds = np.cumsum([shares.train, shares.validation])
    return np.searchsorted(bounds, chance, side="right").astype(np.int8)


def keeps_clear(lat: Floats, lon: Floats, splits: NDArray[np.int8], buffer_km: float) -> NDArray[np.bool_]:
    """Whether each point is at least `buffer_km` from every cell of another split.

    Two points of different splits that both keep clear are then further apart than the buffer, wherever and by whom
    they were drawn. Distances to cells are taken from below: along the meridian to the cell's parallel, and across to
    the great circle of its meridian, whichever is more.
    """
    clear = np.ones(len(lat), dtype=bool)
    if buffer_km <= 0 or not len(lat) or (splits == splits[0]).all():
        return clear
    cell = cell_number(lat, lon)
    south, west = cell_corner(cell)
    row, column = cell // CELL_COLUMNS, cell % CELL_COLUMNS
    own = splits[cell]
    radius = np.degrees(buffer_km / EARTH_RADIUS_KM)
    # Longitude degrees that may lie within the buffer, at the point of the band that is nearest to a pole.
    polar = np.cos(np.radians(np.minimum(np.abs(lat).max() + radius, 90)))
    reach = np.sin(np.radians(radius)) / max(polar, 1e-9)
    columns = 180 if reach >= 1 else int(np.ceil(np.degrees(np.arcsin(reach))))
    for down in (-1, 0, 1):
        band = np.clip(row + down, 0, CELL_ROWS - 1)
        up_km = np.radians({-1: lat - south, 0: 0.0 * lat, 1: south + 1 - lat}[down]) * EARTH_RADIUS_KM
        for along in range(-columns, columns + 1):
            if along == 0:
                across_km = np.zeros(len(lat))
            else:
                turn = np.where(along > 0, west + along - lon, lon - (west + along + 1))
                sine = np.cos(np.radians(lat)) * np.sin(np.radians(np.clip(turn, 0, 90)))
                across_km = np.arcsin(sine) * EARTH_RADIUS_KM
            other = splits[band * CELL_COLUMNS + (column + along) % CELL_COLUMNS]
            clear &= (other == own) | (np.maximum(up_km, across_km) >= buffer_km)
    return clear
