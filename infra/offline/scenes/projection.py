"""Map projections on WGS 84: UTM by Krüger's series, and spherical Mercator, the plane the ground is painted on."""

import math

import numpy as np

_A, _F = 6_378_137.0, 1 / 298.257223563
_N = _F / (2 - _F)
_RADIUS = _A / (1 + _N) * (1 + _N**2 / 4 + _N**4 / 64)
_SCALE = 0.9996
_E = math.sqrt(_F * (2 - _F))
# Krüger's coefficients to the fourth power of n: below a tenth of a millimetre over a zone and its neighbours.
_ALPHA = (
    _N / 2 - 2 * _N**2 / 3 + 5 * _N**3 / 16 + 41 * _N**4 / 180,
    13 * _N**2 / 48 - 3 * _N**3 / 5 + 557 * _N**4 / 1440,
    61 * _N**3 / 240 - 103 * _N**4 / 140,
    49561 * _N**4 / 161280,
)
_BETA = (
    _N / 2 - 2 * _N**2 / 3 + 37 * _N**3 / 96 - _N**4 / 360,
    _N**2 / 48 + _N**3 / 15 - 437 * _N**4 / 1440,
    17 * _N**3 / 480 - 37 * _N**4 / 840,
    4397 * _N**4 / 161280,
)
_DELTA = (
    2 * _N - 2 * _N**2 / 3 - 2 * _N**3 + 116 * _N**4 / 45,
    7 * _N**2 / 3 - 8 * _N**3 / 5 - 227 * _N**4 / 45,
    56 * _N**3 / 15 - 136 * _N**4 / 35,
    4279 * _N**4 / 630,
)

Array = np.ndarray


def central_meridian(zone: int) -> float:
    """Longitude of the middle of a UTM zone, degrees."""
    return zone * 6.0 - 183.0


def to_utm(lat: Array, lon: Array, zone: int, south: bool) -> tuple[Array, Array]:
    """(easting, northing) in metres; longitudes are taken the short way round from the zone's meridian."""
    phi = np.radians(np.asarray(lat, dtype=float))
    lam = np.radians((np.asarray(lon, dtype=float) - central_meridian(zone) + 180.0) % 360.0 - 180.0)
    sine = np.sin(phi)
    t = np.sinh(np.arctanh(sine) - _E * np.arctanh(_E * sine))
    xi0, eta0 = np.arctan2(t, np.cos(lam)), np.arctanh(np.sin(lam) / np.sqrt(1 + t * t))
    xi, eta = xi0.copy(), eta0.copy()
    for j, a in enumerate(_ALPHA, 1):
        xi += a * np.sin(2 * j * xi0) * np.cosh(2 * j * eta0)
        eta += a * np.cos(2 * j * xi0) * np.sinh(2 * j * eta0)
    return 500_000.0 + _SCALE * _RADIUS * eta, _SCALE * _RADIUS * xi + (10_000_000.0 if south else 0.0)


def to_geographic(easting: Array, northing: Array, zone: int, south: bool) -> tuple[Array, Array]:
    """(lat, lon) in degrees; near the date line a longitude may pass 180, so that neighbours stay neighbours."""
    xi0 = (np.asarray(northing, dtype=float) - (10_000_000.0 if south else 0.0)) / (_SCALE * _RADIUS)
    eta0 = (np.asarray(easting, dtype=float) - 500_000.0) / (_SCALE * _RADIUS)
    xi, eta = xi0.copy(), eta0.copy()
    for j, b in enumerate(_BETA, 1):
        xi -= b * np.sin(2 * j * xi0) * np.cosh(2 * j * eta0)
        eta -= b * np.cos(2 * j * xi0) * np.sinh(2 * j * eta0)
    chi = np.arcsin(np.sin(xi) / np.cosh(eta))
    phi = chi.copy()
    for j, d in enumerate(_DELTA, 1):
        phi += d * np.sin(2 * j * chi)
    return np.degrees(phi), central_meridian(zone) + np.degrees(np.arctan2(np.sinh(eta), np.cos(xi)))


SEAM_DEG = -168.0  # the plane's two ends: between UTM zones 2 and 3, in the Bering Strait, with no town for a degree


def to_mercator(lat: Array, lon: Array) -> tuple[Array, Array]:
    """(x, y) in Mercator metres (one is a ground metre at the equator): as seamless as the longitudes are."""
    return _A * np.radians(lon), _A * np.arctanh(np.sin(np.radians(lat)))


def unbroken(lon: Array, middle: Array | float) -> Array:
    """Longitudes around a middle one, all moved by whole turns so that it lies east of the seam.

    So whatever is painted from either side of 180 degrees is painted at the same place of the plane.
    """
    return lon - 360.0 * np.floor((middle - SEAM_DEG) / 360.0)
