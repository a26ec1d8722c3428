"""The shift of maps published in China (GCJ-02), which the offline world's AMap has as the real one does."""

import numpy as np

from infra.offline.country_map import country_map

# Metres as (factor, what the sine is of, half waves a degree); the first is of the axis itself.
_OF_X = ((20.0, 6.0), (20.0, 2.0))
_NORTH = ((20.0, 1.0), (40.0, 1 / 3), (160.0, 1 / 12), (320.0, 1 / 30))
_EAST = ((20.0, 1.0), (40.0, 1 / 3), (150.0, 1 / 12), (300.0, 1 / 30))
_EARTH_M, _FLAT = 6378245.0, 0.00669342162296594323


def _waves(parts: tuple[tuple[float, float], ...], degrees: float) -> float:
    return float(sum(high * np.sin(np.pi * often * degrees) for high, often in parts)) / 1.5


def shifted(lat: float, lon: float) -> tuple[float, float]:
    """Where the map shows a point of China."""
    x, y = lon - 105.0, lat - 35.0
    both = 0.1 * x * y + _waves(_OF_X, x)
    north = both - 100.0 + 2.0 * x + 3.0 * y + 0.2 * y**2 + 0.2 * abs(x) ** 0.5 + _waves(_NORTH, y)
    east = both + 300.0 + x + 2.0 * y + 0.1 * x**2 + 0.1 * abs(x) ** 0.5 + _waves(_EAST, x)
    bend = 1.0 - _FLAT * np.sin(np.radians(lat)) ** 2
    north_deg = np.degrees(north * bend**1.5 / (_EARTH_M * (1.0 - _FLAT)))
    east_deg = np.degrees(east * bend**0.5 / (_EARTH_M * np.cos(np.radians(lat))))
    return round(lat + float(north_deg), 7), round(lon + float(east_deg), 7)


def unshifted(lat: float, lon: float) -> tuple[float, float]:
    """The point that the map shows here: another one in China, itself elsewhere."""
    if not (17.0 <= lat <= 54.0 and 73.0 <= lon <= 136.0):
        return lat, lon
    there = lat, lon
    for _ in range(6):
        shown = shifted(*there)
        there = there[0] + lat - shown[0], there[1] + lon - shown[1]
    return there if country_map().at(*there) == "CN" else (lat, lon)
