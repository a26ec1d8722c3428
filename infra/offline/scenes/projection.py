"""Map projections on WGS 84: UTM by PROJ, and spherical Mercator, the plane the ground is painted on."""

from functools import cache

import numpy as np
from pyproj import Transformer

Array = np.ndarray

_RADIUS_M = 6_378_137.0
SEAM_DEG = -168.0  # the plane's two ends: between UTM zones 2 and 3, in the Bering Strait, with no town for a degree


def central_meridian(zone: int) -> float:
    """Longitude of the middle of a UTM zone, degrees."""
    return zone * 6.0 - 183.0


@cache
def _utm(zone: int, south: bool) -> Transformer:
    return Transformer.from_crs(4326, (32700 if south else 32600) + zone, always_xy=True)


def to_utm(lat: Array, lon: Array, zone: int, south: bool) -> tuple[Array, Array]:
    """(easting, northing) in metres; longitudes are taken the short way round from the zone's meridian."""
    easting, northing = _utm(zone, south).transform(lon, lat)
    return easting, northing


def to_geographic(easting: Array, northing: Array, zone: int, south: bool) -> tuple[Array, Array]:
    """(lat, lon) in degrees; near the date line a longitude may pass 180, so that neighbours stay neighbours."""
    lon, lat = _utm(zone, south).transform(easting, northing, direction="INVERSE")
    middle = central_meridian(zone)
    return lat, (lon - middle + 180.0) % 360.0 - 180.0 + middle


def to_mercator(lat: Array, lon: Array) -> tuple[Array, Array]:
    """(x, y) in Mercator metres (one is a ground metre at the equator): as seamless as the longitudes are."""
    return _RADIUS_M * np.radians(lon), _RADIUS_M * np.arctanh(np.sin(np.radians(lat)))


def unbroken(lon: Array, middle: Array | float) -> Array:
    """Longitudes around a middle one, all moved by whole turns so that it lies east of the seam.

    So whatever is painted from either side of 180 degrees is painted at the same place of the plane.
    """
    return lon - 360.0 * np.floor((middle - SEAM_DEG) / 360.0)
