"""Nearest pictures on the sphere, by a k-d tree over unit vectors."""

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from tasks.geo.distance import distance_km, on_sphere

Vectors = NDArray[np.float64]


def located(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows that have a point on Earth."""
    return rows.filter(pl.col("lat").is_between(-90, 90) & pl.col("lon").is_between(-180, 180))


def nearest(rows: pl.DataFrame, among: pl.DataFrame, count: int) -> tuple[NDArray[np.int64], Vectors]:
    """For each row the positions of its nearest ones in `among`, and their distances in kilometres.

    Both have as many columns as there are to find. Chords grow with great circles, so the order is the sphere's.
    """
    count = min(count, among.height)
    if not rows.height or not count:
        return np.empty((rows.height, 0), np.int64), np.empty((rows.height, 0))
    lats, lons = among["lat"].to_numpy(), among["lon"].to_numpy()
    lat, lon = rows["lat"].to_numpy(), rows["lon"].to_numpy()
    _, indices = cKDTree(on_sphere(lats, lons)).query(on_sphere(lat, lon), k=count)
    indices = np.asarray(indices, np.int64).reshape(rows.height, count)
    km = distance_km(lat[:, None], lon[:, None], lats[indices], lons[indices])
    return indices, np.asarray(km)
