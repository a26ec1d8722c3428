"""A population raster as a file: opened, checked, and read in windows that fit into memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from schemas.errors import InputError
from tasks.geo.boundaries import wrap

if TYPE_CHECKING:  # rasterio takes half a second to import, and few plans have a raster
    from rasterio.crs import CRS
    from rasterio.io import DatasetReader
    from rasterio.windows import Window


def refuse(path: str, what: str) -> NoReturn:
    """Say what is wrong with the file, and how to mend it, under the name of its setting."""
    raise InputError(f"plan.population_raster: {path} {what}")


WINDOW_PIXELS = 4_000_000  # read together; with what is computed from them about 300 MB
CACHE_MB = 256  # of decoded blocks; GDAL's default is a twentieth of the machine
# A block is decoded whole; one that fits into the cache is decoded once, however many windows it is read in.
LARGEST_BLOCK_MB = 200
COARSEST_DEG = 0.5  # a pixel counts where its middle lies, so it must be well below the one-degree cells
MOST_PEOPLE = 1e9  # on one pixel: more is an undeclared no-data value
PROBE_LAT, PROBE_LON = 50.0, 10.0  # a point that says by which numbers a reference system goes:
DATUM_DEG = 0.05  # one ellipsoid or another moves it by a kilometre, another unit or meridian by hundreds
LEEWAY_DEG = 0.01  # corners are often rounded

Floats = NDArray[np.float64]


@contextlib.contextmanager
def open_raster(path: str) -> Iterator[DatasetReader]:
    """The raster, once nothing about it would put people in the wrong place."""
    import rasterio

    # GDAL takes an ASCII grid whose first numbers are whole for one of whole numbers, and cuts all others to such.
    options = {"DATATYPE": "Float64"} if path.casefold().endswith(".asc") else {}
    try:
        with rasterio.Env(GDAL_CACHEMAX=CACHE_MB), rasterio.open(path, **options) as source:
            _check_place(source, path)
            _check_layout(source, path)
            yield source
    except rasterio.errors.RasterioError as error:
        # What GDAL itself said stands behind rasterio's words about it.
        reason = " ".join(str(error.__cause__ or error).split())
        refuse(path, f"cannot be read; it is damaged, cut short or no raster: get it again ({reason[:160]})")


def _check_place(source: DatasetReader, path: str) -> None:
    """Refuse what is not in degrees, or not on Earth."""
    west, south, east, north = source.bounds
    if source.crs is not None and not source.crs.is_geographic:
        refuse(path, f"is in {source.crs.to_string()[:60]}; reproject it to EPSG:4326 (summing people, not averaging)")
    if source.crs is not None and not _is_plain_degrees(source.crs):
        refuse(
            path,
            f"is in {source.crs.to_string()[:60]}, whose numbers are not degrees from Greenwich; "
            "reproject it to EPSG:4326 (summing people, not averaging)",
        )
    grid = source.transform
    if grid.b or grid.d:
        refuse(path, "is rotated; warp it to a grid whose rows run from west to east (gdalwarp -t_srs EPSG:4326)")
    if grid.e >= 0 or grid.a <= 0:
        refuse(path, "does not begin in its north-west corner; turn it (gdalwarp -t_srs EPSG:4326)")
    in_latitude = south >= -90 - LEEWAY_DEG and north <= 90 + LEEWAY_DEG
    in_longitude = west >= -180 - LEEWAY_DEG and east <= 360 + LEEWAY_DEG
    if not (in_latitude and in_longitude):
        # Metres are thousands; a degree that is off by a little is a mistake in the corner or the size.
        metres = max(abs(bound) for bound in (west, south, east, north)) > 1000
        way = "that looks like metres: reproject it to EPSG:4326" if metres else "correct its corner or pixel size"
        refuse(
            path,
            f"reaches from latitude {south:g} to {north:g} and longitude {west:g} to {east:g}, beyond the Earth's "
            f"degrees; {way}",
        )
    if east - west > 360 + 2 * LEEWAY_DEG:
        refuse(path, f"is {east - west:g} degrees wide, more than once round the Earth; cut it to 360")
    # An ASCII grid has no room for a reference system; degrees are what such grids come in.
    if source.crs is None and source.driver != "AAIGrid":
        refuse(
            path,
            "has no coordinate reference system; "
            "if it is in degrees, write EPSG:4326 into it (rio edit-info --crs EPSG:4326)",
        )
    if max(grid.a, -grid.e) > COARSEST_DEG and not is_cell_grid(source):
        refuse(
            path,
            f"has pixels of {max(grid.a, -grid.e):g} degrees; at most {COARSEST_DEG} fit one-degree cells, or "
            "exactly 1 on whole degrees",
        )


def is_cell_grid(source: DatasetReader) -> bool:
    """Whether the pixels are the one-degree cells themselves, as in GeoAgent's eq. 12."""
    grid = source.transform
    corner = (grid.c, grid.f)
    sides = abs(grid.a - 1) < LEEWAY_DEG / 100 and abs(grid.e + 1) < LEEWAY_DEG / 100
    return bool(sides and all(abs(value - round(value)) < LEEWAY_DEG for value in corner))


def _is_plain_degrees(crs: CRS) -> bool:
    """Whether a geographic system counts in degrees from Greenwich; some count in grads, or from Paris or Ferro."""
    from pyproj import Transformer
    from pyproj.exceptions import ProjError

    try:
        to_degrees = Transformer.from_crs(crs.to_wkt(), "EPSG:4326", always_xy=True)
        lon, lat = to_degrees.transform(PROBE_LON, PROBE_LAT)
    except ProjError:
        return False  # no system of this Earth
    return bool(abs(lon - PROBE_LON) < DATUM_DEG and abs(lat - PROBE_LAT) < DATUM_DEG)


def _check_layout(source: DatasetReader, path: str) -> None:
    """Refuse what would be read in part, or not within 2 GB."""
    if source.count > 1:
        refuse(path, f"has {source.count} bands; people are counted in one: keep that (gdal_translate -b 1)")
    if np.dtype(source.dtypes[0]).kind not in "iuf":
        refuse(path, f"holds numbers of type {source.dtypes[0]}; people are whole or decimal numbers")
    height, width = source.block_shapes[0]
    size_mb = height * width * np.dtype(source.dtypes[0]).itemsize / 1e6
    if size_mb > LARGEST_BLOCK_MB:
        refuse(
            path,
            f"is packed in blocks of {width:,} x {height:,} pixels, {size_mb:,.0f} MB each, which can only be read "
            "whole; rewrite it in tiles (gdal_translate -co TILED=YES -co COMPRESS=DEFLATE -co BIGTIFF=IF_SAFER)",
        )


def windows(source: DatasetReader) -> Iterator[Window]:
    """Windows that cover the raster: several blocks together, or a large block in parts, one block after another."""
    from rasterio.windows import Window

    block_height, block_width = source.block_shapes[0]
    width = min(source.width, max(block_width, WINDOW_PIXELS // block_height // block_width * block_width))
    height = min(source.height, max(block_height, WINDOW_PIXELS // width // block_height * block_height))
    part = max(1, WINDOW_PIXELS // width)
    for top in range(0, source.height, height):
        bottom = min(top + height, source.height)
        for left in range(0, source.width, width):
            for row in range(top, bottom, part):
                yield Window(left, row, min(width, source.width - left), min(part, bottom - row))


def populated(source: DatasetReader, window: Window, path: str) -> tuple[Floats, Floats, Floats]:
    """Latitude, longitude and people of the window's pixels that have any."""
    band: Any = source.read(1, window=window, masked=True)
    values: Any = np.ma.getdata(band).astype(np.float32 if band.dtype.itemsize < 8 else np.float64, copy=False)
    if (source.scales[0], source.offsets[0]) != (1.0, 0.0):
        values = values * source.scales[0] + source.offsets[0]
    valid = ~np.ma.getmaskarray(band)
    grid = source.transform

    def middle(row: Any, column: Any) -> tuple[Any, Any]:
        return grid.f + (window.row_off + row + 0.5) * grid.e, grid.c + (window.col_off + column + 0.5) * grid.a

    wrong = valid & ~((values >= 0) & (values <= MOST_PEOPLE))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        lat, lon = middle(row, column)
        refuse(
            path,
            f"holds {values[row, column]:g} people at {lat:.3f}, {lon:.3f}; mark what is not a count as no-data "
            "(gdal_edit.py -a_nodata VALUE, or NODATA_value in an ASCII grid)",
        )
    row, column = np.nonzero(valid & (values > 0))
    lat, lon = middle(row, column)
    return np.clip(lat, -90, 90), wrap(lon), values[row, column].astype(np.float64)
