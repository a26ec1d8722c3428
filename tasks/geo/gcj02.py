"""GCJ-02, the shifted coordinates of maps published in China, to WGS 84 and back.

The shift is a published sum of sines on the Krasovsky ellipsoid, 100 to 700 m inside mainland China and none outside.
Within that distance beyond a land border a shifted point cannot be told from an unshifted one: it is taken for China's.
"""

import math

from tasks.geo.boundaries import country_of

_AXIS_M, _ECCENTRICITY = 6378245.0, 0.00669342162296594323  # Krasovsky 1940; the first eccentricity squared
_SOUTH, _NORTH, _WEST, _EAST = 17.0, 54.0, 73.0, 136.0  # no part of mainland China or Hainan lies beyond
_OFFSHORE_DEG = 0.05  # as far as piers, bridges and reclaimed land reach beyond the packaged coast
_ROUNDS = 8  # of the inverse; each leaves less than a hundredth of the error before


def in_china(lat: float, lon: float) -> bool:
    """Whether maps of China show a WGS 84 point shifted: mainland and its coast, not Hong Kong, Macao or Taiwan."""
    if not (_SOUTH <= lat <= _NORTH and _WEST <= lon <= _EAST):
        return False
    here = str(country_of([lat], [lon])[0])
    if here:
        return here == "CN"
    steps = [(north, east) for north in (-1, 0, 1) for east in (-1, 0, 1)]
    around = country_of(
        [lat + _OFFSHORE_DEG * north for north, _ in steps], [lon + _OFFSHORE_DEG * east for _, east in steps]
    )
    return bool((around == "CN").any()) and not bool((around == "HK").any() or (around == "MO").any())


def wgs84_to_gcj02(lat: float, lon: float) -> tuple[float, float]:
    """(lat, lon) as a map of China has the point; outside China the point itself."""
    return _shifted(lat, lon) if in_china(lat, lon) else (lat, lon)


def gcj02_to_wgs84(lat: float, lon: float) -> tuple[float, float]:
    """(lat, lon) in WGS 84 of a point as a map of China has it; outside China the point itself."""
    if not (_SOUTH <= lat <= _NORTH and _WEST <= lon <= _EAST):
        return lat, lon
    true_lat, true_lon = lat, lon
    for _ in range(_ROUNDS):  # the shift changes little over its own length: a fixed point
        there = _shifted(true_lat, true_lon)
        true_lat, true_lon = true_lat + lat - there[0], true_lon + lon - there[1]
    return (true_lat, true_lon) if in_china(true_lat, true_lon) else (lat, lon)


def _shifted(lat: float, lon: float) -> tuple[float, float]:
    x, y = lon - 105.0, lat - 35.0
    waves = 20.0 * _sine(6 * x) + 20.0 * _sine(2 * x)
    north_m = -100.0 + 2.0 * x + 3.0 * y + 0.2 * y * y + 0.1 * x * y + 0.2 * math.sqrt(abs(x))
    north_m += (waves + 20.0 * _sine(y) + 40.0 * _sine(y / 3) + 160.0 * _sine(y / 12) + 320.0 * _sine(y / 30)) * 2 / 3
    east_m = 300.0 + x + 2.0 * y + 0.1 * x * x + 0.1 * x * y + 0.1 * math.sqrt(abs(x))
    east_m += (waves + 20.0 * _sine(x) + 40.0 * _sine(x / 3) + 150.0 * _sine(x / 12) + 300.0 * _sine(x / 30)) * 2 / 3
    phi = math.radians(lat)
    flattening = 1.0 - _ECCENTRICITY * math.sin(phi) ** 2
    meridian_m = _AXIS_M * (1.0 - _ECCENTRICITY) / flattening**1.5
    parallel_m = _AXIS_M / math.sqrt(flattening) * math.cos(phi)
    return lat + math.degrees(north_m / meridian_m), lon + math.degrees(east_m / parallel_m)


def _sine(turns: float) -> float:
    return math.sin(turns * math.pi)
