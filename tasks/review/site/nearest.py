"""Nearest pictures on the sphere, by a k-d tree over unit vectors."""

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from tasks.geo.distance import distance_km

Vectors = NDArray[np.float64]


def located(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows that have a point on Earth."""
    return rows.filter(pl.col("lat").is_between(-90, 90) & pl.col("lon").is_between(-180, 180))


def unit_vectors(rows: pl.DataFrame) -> Vectors:
    lat, lon = (np.radians(rows[name].to_numpy().astype(np.float64)) for name in ("lat", "lon"))
    return np.column_stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)])


def nearest(rows: pl.DataFrame, among: pl.DataFrame, count: int) -> tuple[NDArray[np.int64], Vectors]:
    """For each row the positions of its nearest ones in `among`, and their distances in kilometres.

    Both have as many columns as there are to find. Chords grow with great circles, so the order is the sphere's.
    """
    count = min(count, among.height)
    if not rows.height or not count:
        return np.empty((rows.height, 0), np.int64), np.empty((rows.height, 0))
    _, indices = cKDTree(unit_vectors(among)).query(unit_vectors(rows), k=count)
    indices = np.asarray(indices, np.int64).reshape(rows.height, count)
    lats, lons = among["lat"].to_numpy(), among["lon"].to_numpy()
    km = distance_km(rows["lat"].to_numpy()[:, None], rows["lon"].to_numpy()[:, None], lats[indices], lons[indices])
    return indices, np.asarray(km)
