"""All pairs of points of two sets within a radius, exactly, for millions of points.

The larger set is sorted by bands of latitude as high as the radius, and by longitude inside a band. A point's
neighbours lie in its own band and the two beside it, in one stretch of longitudes each: two binary searches find a
stretch, and only what lies inside it is measured.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tasks.geo.distance import EARTH_RADIUS_KM, distance_km

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
CHUNK = 4_000_000  # candidate pairs measured at once
WIDE = 400.0  # a band's longitudes, in keys: more than 360, so that bands do not touch


def pairs_within(
    lat: ArrayLike, lon: ArrayLike, other_lat: ArrayLike, other_lon: ArrayLike, radius_km: float
) -> tuple[Ints, Ints]:
    """Row numbers (of the first set, of the second) of every pair at most `radius_km` apart, sorted."""
    a_lat, a_lon, b_lat, b_lon = (np.asarray(side, float).ravel() for side in (lat, lon, other_lat, other_lon))
    if not (len(a_lat) and len(b_lat)) or radius_km < 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if len(a_lat) > len(b_lat):  # the larger set is sorted once, the smaller one asks
        second, first = pairs_within(b_lat, b_lon, a_lat, a_lon, radius_km)
        turn = np.lexsort((second, first))
        return first[turn], second[turn]
    height = max(np.degrees(radius_km / EARTH_RADIUS_KM) * (1 + 1e-9), 1e-6)
    a_lon, b_lon = (a_lon + 180) % 360, (b_lon + 180) % 360
    a_band, b_band = (np.floor((side + 90) / height).astype(np.int64) for side in (a_lat, b_lat))
    key = b_band * WIDE + b_lon
    order = np.argsort(key, kind="stable")
    key, sorted_lat, sorted_lon = key[order], b_lat[order], b_lon[order]
    walk = np.argsort(a_band * WIDE + a_lon, kind="stable")  # neighbours together: the searches stay in the cache
    a_lat, a_lon, a_band = a_lat[walk], a_lon[walk], a_band[walk]
    # How far east or west a point of the band beside can lie, at its latitude nearest to a pole.
    polar = np.cos(np.radians(np.minimum(np.abs(a_lat) + height, 90)))
    reach = np.sin(np.radians(height)) / np.maximum(polar, 1e-12)
    wide = np.where(reach >= 1, 180.0, np.degrees(np.arcsin(np.minimum(reach, 1)))) * (1 + 1e-9) + 1e-9
    pairs: list[tuple[Ints, Ints]] = []
    for step in (-1, 0, 1):
        base = (a_band + step) * WIDE
        for around in (-360.0, 0.0, 360.0):  # around the meridian where longitudes wrap
            west, east = a_lon - wide + around, a_lon + wide + around
            points = np.flatnonzero((east >= 0) & (west < 360))
            if around and not points.size:
                continue
            low = np.searchsorted(key, base[points] + np.clip(west[points], 0, 360), side="left")
            high = np.searchsorted(key, base[points] + np.clip(east[points], 0, 360), side="right")
            pairs += _measured(points, low, high - low, (a_lat, a_lon), (sorted_lat, sorted_lon), radius_km)
    first = np.concatenate([first_rows for first_rows, _ in pairs]) if pairs else np.empty(0, np.int64)
    second = np.concatenate([two for _, two in pairs]) if pairs else np.empty(0, np.int64)
    first, second = walk[first], order[second]
    both = np.unique(first * len(b_lat) + second)
    return both // len(b_lat), both % len(b_lat)


def _measured(
    points: Ints, low: Ints, count: Ints, a: tuple[Floats, Floats], b: tuple[Floats, Floats], radius_km: float
) -> list[tuple[Ints, Ints]]:
    """The pairs of each stretch that are near enough, a chunk of candidates at a time."""
    some = np.flatnonzero(count > 0)
    points, low, count = points[some], low[some], count[some]
    ends = np.cumsum(count)
    pairs, begin = [], 0
    while begin < len(points):
        done = ends[begin - 1] if begin else 0
        end = max(int(np.searchsorted(ends, done + CHUNK, side="right")), begin + 1)
        part = count[begin:end]
        which = np.repeat(np.arange(begin, end), part)
        row = low[which] + np.arange(len(which)) - np.repeat(np.cumsum(part) - part, part)
        point = points[which]
        near = distance_km(a[0][point], a[1][point], b[0][row], b[1][row]) <= radius_km
        pairs.append((point[near], row[near]))
        begin = end
    return pairs
