"""All pairs of points of two sets within a radius, exactly, for millions of points."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

from tasks.geo.distance import EARTH_RADIUS_KM, distance_km, on_sphere

Ints = NDArray[np.int64]


def pairs_within(
    lat: ArrayLike, lon: ArrayLike, other_lat: ArrayLike, other_lon: ArrayLike, radius_km: float
) -> tuple[Ints, Ints]:
    """Row numbers (of the first set, of the second) of every pair at most `radius_km` apart, sorted."""
    a_lat, a_lon, b_lat, b_lon = (np.asarray(side, float).ravel() for side in (lat, lon, other_lat, other_lon))
    if not (len(a_lat) and len(b_lat)) or radius_km < 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    # k-d trees of points in space: within a radius on the sphere is within a chord. A hair more, then measured.
    chord = 2 * np.sin(min(radius_km / EARTH_RADIUS_KM, np.pi) / 2) * (1 + 1e-9) + 1e-9
    found = cKDTree(on_sphere(a_lat, a_lon)).sparse_distance_matrix(
        cKDTree(on_sphere(b_lat, b_lon)), chord, output_type="ndarray"
    )
    first, second = found["i"].astype(np.int64), found["j"].astype(np.int64)
    near = distance_km(a_lat[first], a_lon[first], b_lat[second], b_lon[second]) <= radius_km
    first, second = first[near], second[near]
    order = np.lexsort((second, first))
    return first[order], second[order]
