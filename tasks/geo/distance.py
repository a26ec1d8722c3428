"""Distance on the sphere and the one-degree grid: one formula and one radius for the whole project."""

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

EARTH_RADIUS_KM = 6371.0  # mean radius; SpotAgent C.5, GeoAgent eq. 4

_PIECE = 32_768  # pairs computed at once

Floats = NDArray[np.float64]


@overload
def distance_km(lat1: float, lon1: float, lat2: float, lon2: float) -> float: ...
@overload
def distance_km(lat1: ArrayLike, lon1: ArrayLike, lat2: ArrayLike, lon2: ArrayLike) -> NDArray[np.float64]: ...
def distance_km(lat1: ArrayLike, lon1: ArrayLike, lat2: ArrayLike, lon2: ArrayLike) -> float | NDArray[np.float64]:
    """Great-circle kilometres between points in degrees: a float for scalars, else an array, broadcast.

    Haversine (GeoAgent eq. 4): SpotAgent's eq. 11 is the same quantity by the law of cosines, which loses
    its digits below a kilometre. Nothing is repaired on the way: NaN in gives NaN out.
    """
    arguments = (lat1, lon1, lat2, lon2)
    if all(isinstance(value, int | float) for value in arguments):
        return _scalar_km(*(float(value) for value in arguments))  # type: ignore[arg-type]
    arrays = [np.asarray(value, dtype=np.float64) for value in arguments]
    if len({array.shape for array in arrays}) == 1 and arrays[0].ndim == 1 and len(arrays[0]) > 8 * _PIECE:
        return _many_km(arrays)
    result = _array_km(*arrays)
    return float(result) if np.ndim(result) == 0 else result


def _many_km(arrays: Sequence[Floats]) -> Floats:
    """The distances of long columns: in pieces that fit a cache, on all cores, since NumPy releases the GIL."""
    distances = np.empty(len(arrays[0]))

    def fill(at: int) -> None:
        distances[at : at + _PIECE] = _array_km(*(array[at : at + _PIECE] for array in arrays))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, range(0, len(distances), _PIECE)))
    return distances


def _array_km(lat1: Floats, lon1: Floats, lat2: Floats, lon2: Floats) -> Floats:
    phi1, lambda1, phi2, lambda2 = (np.radians(value) for value in (lat1, lon1, lat2, lon2))
    chord = np.sin((phi2 - phi1) / 2) ** 2 + np.cos(phi1) * np.cos(phi2) * np.sin((lambda2 - lambda1) / 2) ** 2
    # Rounding can carry an antipode a hair past 1, where arcsin has no value.
    return np.asarray(2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(np.minimum(chord, 1.0))))


def _scalar_km(lat1: float, lon1: float, lat2: float, lon2: float) -> float:
    """The same by `math`: ten times faster than NumPy for one pair, as rewards need it."""
    if not all(map(math.isfinite, (lat1, lon1, lat2, lon2))):
        return math.nan
    phi1, phi2 = math.radians(lat1), math.radians(lat2)
    across = math.radians(lon2) - math.radians(lon1)
    chord = math.sin((phi2 - phi1) / 2) ** 2 + math.cos(phi1) * math.cos(phi2) * math.sin(across / 2) ** 2
    return 2 * EARTH_RADIUS_KM * math.asin(math.sqrt(min(chord, 1.0)))


def swapped_km(lat: ArrayLike, lon: ArrayLike, other_lat: ArrayLike, other_lon: ArrayLike) -> Floats:
    """Kilometres from the first points with latitude and longitude exchanged; NaN where that is off the Earth."""
    turned = np.abs(np.asarray(lon, dtype=np.float64)) <= 90
    return np.where(turned, distance_km(np.where(turned, lon, 0.0), lat, other_lat, other_lon), np.nan)


def is_point(lat: float, lon: float) -> bool:
    """Whether lat, lon are finite and on Earth."""
    return -90.0 <= lat <= 90.0 and -180.0 <= lon <= 180.0  # NaN fails both comparisons


def cell_of(lat: float, lon: float) -> str:
    """The one-degree cell that holds a point, named by its south-west corner, such as `N48E002`.

    A cell owns its southern and western edge. The north pole and the meridian +180 belong to the last
    cell below and west of them, so that every point of the Earth has a cell of full size.
    """
    if not is_point(lat, lon):
        raise ValueError(f"no cell for lat {lat}, lon {lon}: latitude is -90..90, longitude -180..180")
    south = min(math.floor(lat), 89)
    west = min(math.floor(lon), 179)
    return f"{'N' if south >= 0 else 'S'}{abs(south):02d}{'E' if west >= 0 else 'W'}{abs(west):03d}"


def on_sphere(lat: Floats, lon: Floats) -> Floats:
    """Points of the unit sphere in space, one a row: distances along chords, as k-d trees need them."""
    phi, theta = np.radians(lat), np.radians(lon)
    return np.column_stack([np.cos(phi) * np.cos(theta), np.cos(phi) * np.sin(theta), np.sin(phi)])
