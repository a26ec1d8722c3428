"""Road length by country from a file the user names: any vector file of lines, or a raster of road densities.

Lines are read in batches and each segment counts for the country that its middle lies in, so the size of the file does
not matter. What a file gave is kept in the user's cache folder: reading a planet's roads takes minutes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from schemas.errors import InputError
from tasks.geo.boundaries import country_codes, country_number
from tasks.geo.distance import EARTH_RADIUS_KM, distance_km
from tasks.plan.raster_file import open_raster, populated, windows

if TYPE_CHECKING:
    from pyproj import Transformer

RASTERS = (".tif", ".tiff", ".asc", ".vrt")
BATCH = 65_536  # lines read at once
VERSION = 1  # of what the cache holds

Floats = NDArray[np.float64]

logger = logging.getLogger("geofix.plan")


def road_lengths(path: str) -> dict[str, float]:
    """Kilometres of road by ISO code; InputError for a file that cannot be read, or has no road on land."""
    try:
        info = Path(path).stat()
    except OSError as error:
        raise InputError(f"plan.roads: {path}: {error.strerror}") from None
    return _lengths(path, info.st_size, info.st_mtime_ns)


def roads_digest(path: str) -> str:
    """The lengths in 32 letters: another file gives others, the same one under another name does not."""
    rounded = {code: round(km, 3) for code, km in sorted(road_lengths(path).items())}
    return hashlib.sha256(json.dumps(rounded).encode()).hexdigest()[:32]


def tell_countries_without_roads(path: str, wanted: Sequence[str]) -> None:
    """Say for which planned countries the file has no road: they keep the figure of the packaged table."""
    lengths = road_lengths(path)
    missing = [code for code in wanted if code not in lengths]
    if missing:
        shown = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        logger.warning(
            f"plan.roads: {path} has no roads in {len(missing)} of {len(wanted)} planned countries ({shown}): the "
            "length of the packaged table counts there"
        )


@lru_cache(maxsize=4)
def _lengths(path: str, size: int, changed_ns: int) -> dict[str, float]:
    key = hashlib.sha256(f"{VERSION} {Path(path).resolve()} {size} {changed_ns}".encode()).hexdigest()[:32]
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "geofix" / f"roads-{key}.json"
    try:
        lengths: dict[str, float] = json.loads(kept.read_text())
    except (OSError, ValueError):
        lengths = _measured(path)
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(lengths))
        except OSError as error:
            logger.info("road lengths are not kept for the next run: %s", error.strerror)
    return lengths


def _measured(path: str) -> dict[str, float]:
    codes = country_codes()
    total = np.zeros(len(codes))
    parts = _density_parts(path) if Path(path).suffix.casefold() in RASTERS else _line_parts(path)
    for lat, lon, km in parts:
        total += np.bincount(country_number(lat, lon), weights=km, minlength=len(codes))
    lengths = {code: float(km) for code, km in zip(codes, total, strict=True) if code and km > 0}
    if not lengths:
        raise InputError(f"plan.roads: {path} has no road on any land; it needs lines, or densities in metres per km²")
    return lengths


def _line_parts(path: str) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Middle and length of every segment, a batch of lines at a time."""
    import pyogrio
    import shapely

    try:
        with pyogrio.open_arrow(path, columns=[], batch_size=BATCH, use_pyarrow=True) as (meta, reader):
            to_degrees = _to_degrees(meta.get("crs"), path)
            column = meta.get("geometry_name") or "wkb_geometry"
            for batch in reader:
                yield _segments(shapely.from_wkb(batch.column(column).to_numpy(zero_copy_only=False)), to_degrees)
    except (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError, shapely.errors.ShapelyError) as error:
        raise InputError(f"plan.roads: {path} cannot be read as lines: {str(error)[:200]}") from error


def _to_degrees(name: Any, path: str) -> Transformer | None:
    from pyproj import CRS, Transformer
    from pyproj.exceptions import CRSError

    try:
        crs = CRS.from_user_input(name) if name else CRS.from_epsg(4326)
    except CRSError as error:
        raise InputError(f"plan.roads: {path} has a coordinate system that is not known: {str(name)[:60]}") from error
    return None if crs.is_geographic else Transformer.from_crs(crs, 4326, always_xy=True)


def _segments(geometries: Any, to_degrees: Transformer | None) -> tuple[Floats, Floats, Floats]:
    import shapely

    lines = shapely.get_parts(geometries[~shapely.is_missing(geometries)])
    lines = lines[np.isin(shapely.get_type_id(lines), (1, 2))]  # lines and rings; points and areas are no roads
    points, line = shapely.get_coordinates(lines, return_index=True)
    if to_degrees is not None and len(points):
        points = np.stack(to_degrees.transform(points[:, 0], points[:, 1]), axis=1)
    joined = (np.diff(line) == 0) & np.isfinite(points).all(axis=1)[1:] & np.isfinite(points).all(axis=1)[:-1]
    first, last = points[:-1][joined], points[1:][joined]
    middle = (first + last) / 2
    km = distance_km(first[:, 1], first[:, 0], last[:, 1], last[:, 0])
    return np.clip(middle[:, 1], -90, 90), (middle[:, 0] + 180) % 360 - 180, np.atleast_1d(km)


def _density_parts(path: str) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Middle of every pixel with roads, and the length that its density, in metres per square km, makes on its area."""
    with open_raster(path) as source:
        side_lat, side_lon = abs(source.transform.e), abs(source.transform.a)
        square = np.radians(side_lat) * np.radians(side_lon) * EARTH_RADIUS_KM**2
        for window in windows(source):
            lat, lon, density = populated(source, window, path)
            yield lat, lon, density / 1000.0 * square * np.cos(np.radians(lat))
