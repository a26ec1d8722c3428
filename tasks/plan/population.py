"""People per cell from a raster the user names: GeoTIFF or ASCII grid, of any size, read in windows."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.io import DatasetReader
from rasterio.windows import Window

from tasks.boundaries import country_number, wrap
from tasks.errors import GeofixError
from tasks.plan.cells import CELLS, Cells, cell_number, cells

WINDOW_PIXELS = 4_000_000  # read together; with what is computed from them about 300 MB
CACHE_MB = 256  # of decoded blocks; GDAL's default is a twentieth of the machine
COARSEST_DEG = 0.5  # a pixel counts where its middle lies, so it must be well below the one-degree cells

Floats = NDArray[np.float64]


def raster_cells(path: str) -> Cells:
    """The embedded cells, with the raster's people in place of the gazetteer's."""
    file = Path(path)
    try:
        found = file.stat()
    except OSError as error:
        raise GeofixError(f"plan.population_raster: {path}: {error.strerror}") from None
    return _raster_cells(path, found.st_size, found.st_mtime_ns)


def raster_digest(path: str) -> str:
    """The people of all cells in 32 letters: another raster gives others, the same one under another name does not."""
    return hashlib.sha256(raster_cells(path).people.astype("<f8").tobytes()).hexdigest()[:32]


@lru_cache(maxsize=2)
def _raster_cells(path: str, size: int, changed_ns: int) -> Cells:
    table = cells()
    try:
        with rasterio.Env(GDAL_CACHEMAX=CACHE_MB), rasterio.open(path) as source:
            _check(source, path)
            if source.driver != "AAIGrid":
                return replace(table, people=_people(source, path, table))
            check_grid_text(path, nan_is_no_data=source.nodata is not None and np.isnan(source.nodata))
        # GDAL takes a grid whose first numbers are whole for one of whole numbers, and cuts all others down to such.
        with rasterio.Env(GDAL_CACHEMAX=CACHE_MB), rasterio.open(path, DATATYPE="Float64") as source:
            return replace(table, people=_people(source, path, table))
    except rasterio.errors.RasterioError as error:
        raise GeofixError(f"plan.population_raster: {path} cannot be read: {error}") from None


def _check(source: DatasetReader, path: str) -> None:
    """Refuse what would put people in the wrong place."""
    west, south, east, north = source.bounds
    on_earth = west >= -180.01 and east <= 360.01 and south >= -90.01 and north <= 90.01
    # An ASCII grid has no room for a reference system; degrees are what such grids come in.
    if source.crs is None and not (source.driver == "AAIGrid" and on_earth):
        raise GeofixError(
            f"plan.population_raster: {path} has no coordinate reference system; "
            "if it is in degrees, write EPSG:4326 into it (rio edit-info --crs EPSG:4326)"
        )
    if source.crs is not None and not source.crs.is_geographic:
        raise GeofixError(
            f"plan.population_raster: {path} is in {source.crs.to_string()[:60]}; "
            "reproject it to EPSG:4326 (summing people, not averaging)"
        )
    grid = source.transform
    if grid.b or grid.d or grid.e >= 0 or grid.a <= 0 or not on_earth:
        raise GeofixError(f"plan.population_raster: {path} is not a north-up grid of the Earth in degrees")
    if max(grid.a, -grid.e) > COARSEST_DEG:
        raise GeofixError(
            f"plan.population_raster: {path} has pixels of {max(grid.a, -grid.e):g} degrees; "
            f"at most {COARSEST_DEG} fit one-degree cells"
        )


def check_grid_text(path: str, nan_is_no_data: bool) -> None:
    """Refuse words in an ASCII grid: GDAL reads `nan`, `1,5` and any other as some number, without a word."""
    wanted = b"0123456789+-.eE \t\r\n" + (b"nNaA" if nan_is_no_data else b"")
    strange = re.compile(rb"[^" + re.escape(wanted) + rb"]")
    with Path(path).open("rb") as file:
        line = 1
        start = 0
        for text in file:  # the header: names and their values
            if not text.strip()[:1].isalpha():
                break
            line += 1
            start += len(text)
        file.seek(start)
        while piece := file.read(1 << 24):
            # Deleting what is allowed is many times quicker than searching, and nearly always leaves nothing.
            if piece.translate(None, wanted):
                found = strange.search(piece)
                assert found is not None
                begin = max(piece.rfind(b" ", 0, found.start()), piece.rfind(b"\n", 0, found.start())) + 1
                word = piece[begin:].split(None, 1)[0][:20].decode(errors="replace")
                line += piece.count(b"\n", 0, found.start())
                raise GeofixError(
                    f"plan.population_raster: {path} holds {word!r} in line {line}; "
                    "people are numbers, and what is not a count is marked as no-data (NODATA_value)"
                )
            line += piece.count(b"\n")


def _people(source: DatasetReader, path: str, table: Cells) -> Floats:
    keys = table.country * CELLS + table.cell
    people, adrift = np.zeros(len(keys)), np.zeros(CELLS)
    for window in _windows(source):
        lat, lon, count = _populated(source, window, path)
        cell = cell_number(lat, lon)
        key = country_number(lat, lon) * CELLS + cell
        row = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
        known = keys[row] == key
        people += np.bincount(row[known], weights=count[known], minlength=len(keys))
        adrift += np.bincount(cell[~known], weights=count[~known], minlength=CELLS)
    if not people.any():
        raise GeofixError(f"plan.population_raster: {path} has no people on any land")
    # Harbours and islets off the coast as drawn count for the country that has most people in their cell.
    order = np.lexsort((-people, table.cell))
    first = order[np.concatenate([[True], np.diff(table.cell[order]) != 0])]
    people[first] += adrift[table.cell[first]]
    return people


def _windows(source: DatasetReader) -> Iterator[Window]:
    """Windows of whole blocks, so that none is decoded twice."""
    block_height, block_width = source.block_shapes[0]
    width = min(source.width, max(block_width, WINDOW_PIXELS // block_height // block_width * block_width))
    height = min(source.height, max(block_height, WINDOW_PIXELS // width // block_height * block_height))
    for top in range(0, source.height, height):
        for left in range(0, source.width, width):
            yield Window(left, top, min(width, source.width - left), min(height, source.height - top))


def _populated(source: DatasetReader, window: Window, path: str) -> tuple[Floats, Floats, Floats]:
    """Latitude, longitude and people of the window's pixels that have any."""
    band: Any = source.read(1, window=window, masked=True)
    values: Any = np.ma.getdata(band).astype(np.float32 if band.dtype.itemsize < 8 else np.float64, copy=False)
    valid = ~np.ma.getmaskarray(band)
    grid = source.transform

    def middle(row: Any, column: Any) -> tuple[Any, Any]:
        return grid.f + (window.row_off + row + 0.5) * grid.e, grid.c + (window.col_off + column + 0.5) * grid.a

    wrong = valid & ~((values >= 0) & (values < np.inf))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        lat, lon = middle(row, column)
        raise GeofixError(
            f"plan.population_raster: {path} holds {values[row, column]:g} people at {lat:.3f}, {lon:.3f}; "
            "mark what is not a count as no-data"
        )
    row, column = np.nonzero(valid & (values > 0))
    lat, lon = middle(row, column)
    return np.clip(lat, -90, 90), wrap(lon), values[row, column].astype(np.float64)
