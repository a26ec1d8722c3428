"""People per cell from a raster the user names: GeoTIFF or ASCII grid, of any size, read in windows."""

import hashlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from tasks.boundaries import country_number
from tasks.errors import InputError
from tasks.plan.ascii_grid import refuse
from tasks.plan.cells import CELLS, Cells, cell_number, cells
from tasks.plan.raster_file import Floats, open_raster, populated, windows


def raster_cells(path: str) -> Cells:
    """The embedded cells, with the raster's people in place of the gazetteer's."""
    try:
        found = Path(path).stat()
        return _raster_cells(path, found.st_size, found.st_mtime_ns)
    except OSError as error:
        raise InputError(f"plan.population_raster: {path}: {error.strerror}") from None


def raster_digest(path: str) -> str:
    """The people of all cells in 32 letters: another raster gives others, the same one under another name does not."""
    return hashlib.sha256(raster_cells(path).people.astype("<f8").tobytes()).hexdigest()[:32]


@lru_cache(maxsize=2)
def _raster_cells(path: str, size: int, changed_ns: int) -> Cells:
    table = cells()
    with open_raster(path) as source:
        keys = table.country * CELLS + table.cell
        people, adrift = np.zeros(len(keys)), np.zeros(CELLS)
        for window in windows(source):
            lat, lon, count = populated(source, window, path)
            cell = cell_number(lat, lon)
            key = country_number(lat, lon) * CELLS + cell
            row = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
            known = keys[row] == key
            people += np.bincount(row[known], weights=count[known], minlength=len(keys))
            adrift += np.bincount(cell[~known], weights=count[~known], minlength=CELLS)
    if not people.any():
        refuse(path, "has no people on any land")
    return replace(table, people=_ashore(table, people, adrift))


def _ashore(table: Cells, people: Floats, adrift: Floats) -> Floats:
    """Harbours and islets off the coast as drawn count for the country that has most people in their cell."""
    order = np.lexsort((-people, table.cell))
    first = order[np.concatenate([[True], np.diff(table.cell[order]) != 0])]
    people[first] += adrift[table.cell[first]]
    return people
