"""People per cell from a raster the user names: GeoTIFF or ASCII grid, of any size, read in windows."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from schemas.errors import InputError
from tasks.geo.boundaries import country_codes, country_number
from tasks.plan.cells import CELLS, Cells, cell_corner, cell_number, cells
from tasks.plan.raster_file import Floats, is_cell_grid, open_raster, populated, refuse, windows

if TYPE_CHECKING:
    from rasterio.io import DatasetReader

SMALL_GAP = 0.01  # of a country's land outside the raster

Bounds = tuple[float, float, float, float]  # west, south, east, north

logger = logging.getLogger("geofix.plan")


def raster_cells(path: str) -> Cells:
    """The embedded cells, with the raster's people in place of the gazetteer's."""
    return _counted(path)[0]


def raster_people(path: str) -> dict[str, float]:
    """People by ISO code, of the countries where the raster has any."""
    table, codes = raster_cells(path), country_codes()
    people = np.bincount(table.country, weights=table.people, minlength=len(codes))
    return {code: float(count) for code, count in zip(codes, people, strict=True) if code and count > 0}


def raster_digest(path: str) -> str:
    """The people of all cells in 32 letters: another raster gives others, the same one under another name does not."""
    return hashlib.sha256(raster_cells(path).people.astype("<f8").tobytes()).hexdigest()[:32]


def tell_gaps(path: str, wanted: Sequence[str]) -> None:
    """Say for which of the wanted countries the raster is of no use, and of which it covers a part only."""
    table, (west, south, east, north) = _counted(path)
    codes = country_codes()
    people = np.bincount(table.country, weights=table.people, minlength=len(codes))
    empty = [code for code in wanted if not people[codes.index(code)]]
    if empty:
        logger.warning(
            f"plan.population_raster: {path} has no people in {len(empty)} of {len(wanted)} planned countries "
            f"({_some(empty)}): their cells count alike"
        )
    low_lat, low_lon = cell_corner(table.cell)
    covered = np.zeros(len(table.cell), dtype=bool)
    for turn in (0, 360):  # a raster may go from 0 to 360 degrees
        covered |= (low_lon + turn < east) & (low_lon + turn + 1 > west) & (low_lat < north) & (low_lat + 1 > south)
    # By land: a corner of a cell with a rock in it is not worth a warning.
    missing = np.bincount(table.country, weights=table.share * ~covered, minlength=len(codes))
    whole = np.bincount(table.country, weights=table.share, minlength=len(codes))
    cut = []
    for code in sorted(set(wanted) - set(empty), key=lambda code: (-missing[codes.index(code)], code)):
        number = codes.index(code)
        if missing[number] > SMALL_GAP * whole[number]:
            own = table.country == number
            cut.append(f"{covered[own].sum()} of {own.sum()} cells of {code}")
    if cut:
        logger.warning(
            f"plan.population_raster: {path} covers {_some(cut)}: it counts no people in the others, and no place is "
            "drawn there; name a raster of the whole country, or leave it out (plan.countries)"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def _counted(path: str) -> tuple[Cells, Bounds]:
    try:
        info = Path(path).stat()
        return _raster_cells(path, info.st_size, info.st_mtime_ns)
    except OSError as error:
        raise InputError(f"plan.population_raster: {path}: {error.strerror}") from None


@lru_cache(maxsize=2)
def _raster_cells(path: str, size: int, changed_ns: int) -> tuple[Cells, Bounds]:
    table = cells()
    with open_raster(path) as source:
        bounds: Bounds = tuple(source.bounds)
        keys = table.country * CELLS + table.cell
        people, adrift = np.zeros(len(keys)), np.zeros(CELLS)
        if is_cell_grid(source):
            people = _shared_out(table, source, path)
        for window in () if is_cell_grid(source) else windows(source):
            lat, lon, count = populated(source, window, path)
            cell = cell_number(lat, lon)
            key = country_number(lat, lon) * CELLS + cell
            row = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
            known = keys[row] == key
            people += np.bincount(row[known], weights=count[known], minlength=len(keys))
            adrift += np.bincount(cell[~known], weights=count[~known], minlength=CELLS)
    if not people.any():
        refuse(path, "has no people on any land")
    return replace(table, people=_ashore(table, people, adrift)), bounds


def _shared_out(table: Cells, source: DatasetReader, path: str) -> Floats:
    """The people of pixels that are cells: a cell of several countries is shared out by their land in it."""
    whole = np.zeros(CELLS)
    for window in windows(source):
        lat, lon, count = populated(source, window, path)
        whole += np.bincount(cell_number(lat, lon), weights=count, minlength=CELLS)
    land = np.bincount(table.cell, weights=table.share, minlength=CELLS)
    return whole[table.cell] * table.share / np.maximum(land[table.cell], 1e-12)


def _ashore(table: Cells, people: Floats, adrift: Floats) -> Floats:
    """Harbours and islets off the coast as drawn count for the country that has most people in their cell."""
    order = np.lexsort((-people, table.cell))
    first = order[np.concatenate([[True], np.diff(table.cell[order]) != 0])]
    people[first] += adrift[table.cell[first]]
    return people
