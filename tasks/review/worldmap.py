"""A world map as SVG shapes: country outlines and counted points, in the Equal Earth projection.

Equal Earth (Šavrič, Patterson and Jenny 2018) keeps areas true, so that a dot in Greenland weighs no more than one
in Congo.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tasks.geo.distance import is_point

WIDTH = 1000.0
_A1, _A2, _A3, _A4 = 1.340264, -0.081106, 0.000893, 0.003796
_TOP_LAT, _BOTTOM_LAT = 83.7, -57.0  # Greenland's tip and Cape Horn; there are no roads south of it


@dataclass(frozen=True)
class Dot:
    """Points of one group that share a one-degree cell."""

    x: float
    y: float
    radius: float
    group: str
    label: str


def _raw(lat: float, lon: float) -> tuple[float, float]:
    theta = math.asin(math.sqrt(3) / 2 * math.sin(math.radians(lat)))
    t2 = theta * theta
    t6 = t2**3
    x = 2 * math.sqrt(3) * math.radians(lon) * math.cos(theta)
    x /= 3 * (9 * _A4 * t6 * t2 + 7 * _A3 * t6 + 3 * _A2 * t2 + _A1)
    return x, theta * (_A4 * t6 * t2 + _A3 * t6 + _A2 * t2 + _A1)


_HALF_WIDTH = _raw(0, 180)[0]
_SCALE = WIDTH / (2 * _HALF_WIDTH)
_TOP = _raw(_TOP_LAT, 0)[1]
HEIGHT = round((_TOP - _raw(_BOTTOM_LAT, 0)[1]) * _SCALE, 1)


def project(lat: float, lon: float) -> tuple[float, float]:
    """Where a point lies on the map, in units of its viewBox."""
    x, y = _raw(lat, lon)
    return (x + _HALF_WIDTH) * _SCALE, (_TOP - y) * _SCALE


@cache
def land_path() -> str:
    """Outlines of all countries as one SVG path."""
    parts = []
    text = (Path(__file__).parent / "outlines.csv").read_text("utf-8")
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        numbers = [int(number) / 10 for number in line.split()]
        corners = [project(lat, lon) for lon, lat in zip(numbers[::2], numbers[1::2], strict=True)]
        parts.append("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners) + "Z")
    return "".join(parts)


@cache
def graticule_path() -> str:
    """Meridians and parallels every 30 degrees as one SVG path."""
    lats = range(-57, 85, 3)
    parts = []
    for lon in range(-180, 181, 30):
        parts.append("M" + "L".join("{:.1f} {:.1f}".format(*project(lat, lon)) for lat in lats))
    for lat in range(-30, 61, 30):
        west, east = project(lat, -180), project(lat, 180)
        parts.append(f"M{west[0]:.1f} {west[1]:.1f}L{east[0]:.1f} {east[1]:.1f}")
    return "".join(parts)


def dots(points: Iterable[tuple[float, float, str]]) -> list[Dot]:
    """Points (lat, lon, group) gathered by one-degree cell and group, the most crowded first."""
    cells: Counter[tuple[int, int, str]] = Counter()
    first: dict[tuple[int, int, str], tuple[float, float]] = {}
    for lat, lon, group in points:
        if not is_point(lat, lon):  # the checks say so; the map has no place for it
            continue
        cell = math.floor(lat), math.floor(lon), group
        cells[cell] += 1
        first[cell] = min(first.get(cell, (lat, lon)), (lat, lon))
    found = []
    for (south, west, group), count in sorted(cells.items(), key=lambda entry: (-entry[1], entry[0])):
        lat, lon = first[south, west, group]
        x, y = project(lat, lon)
        label = f"{count} × {group} near {lat:.2f}, {lon:.2f}"
        found.append(Dot(round(x, 1), round(y, 1), round(min(2.6 + math.sqrt(count), 9.0), 1), group, label))
    return found
