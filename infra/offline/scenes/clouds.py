"""Clouds of a pass, continuous over all its tiles so that overlaps agree, and the sun that casts their shadows."""

import math
from datetime import datetime

import numpy as np

from infra.offline.scenes.window import layers, noise
from infra.offline.seeded_random import fraction

_CELLS_M = (46_000.0, 19_000.0, 8_000.0, 3_300.0, 1_400.0, 620.0)
_FADE = 0.56
CIRRUS, MEDIUM, HIGH = 0.72, 0.0, 0.16  # densities from which a pixel counts as such a cloud


def sun(lat: float, lon: float, at: datetime) -> tuple[float, float]:
    """(elevation, azimuth) of the sun in degrees."""
    day = at.timetuple().tm_yday + at.hour / 24.0
    tilt = math.radians(-23.44 * math.cos(2 * math.pi * (day + 10) / 365.25))
    hour = math.radians(15.0 * ((at.hour + at.minute / 60.0 + lon / 15.0) % 24.0 - 12.0))
    phi = math.radians(lat)
    height = math.asin(math.sin(phi) * math.sin(tilt) + math.cos(phi) * math.cos(tilt) * math.cos(hour))
    azimuth = math.atan2(-math.sin(hour) * math.cos(tilt),
                         math.cos(phi) * math.sin(tilt) - math.sin(phi) * math.cos(tilt) * math.cos(hour))  # fmt: skip
    return math.degrees(height), math.degrees(azimuth) % 360.0


def dryness(lat: np.ndarray, lon: np.ndarray) -> np.ndarray:
    """How dry the climate is, 0 to 1: the great deserts as smooth patches."""
    total = np.zeros(np.shape(lat), dtype=np.float32)
    for at_lat, at_lon, high, wide, strength in _DESERTS:
        far = ((lat - at_lat) / high) ** 2 + (((lon - at_lon + 180) % 360 - 180) / wide) ** 2
        total = np.maximum(total, (strength * np.exp(-(far**1.5))).astype(np.float32))
    return total


# Latitude, longitude, half height and half width in degrees, how dry.
_DESERTS = (
    (24.0, 3.0, 8.5, 26.0, 1.0), (25.5, 30.0, 5.5, 8.0, 1.0), (24.5, 45.0, 9.0, 12.0, 1.0),
    (31.0, 58.0, 6.0, 9.0, 0.85), (41.0, 60.0, 6.0, 10.0, 0.8), (40.0, 86.0, 4.5, 11.0, 0.95),
    (43.0, 105.0, 4.0, 9.0, 0.8), (-25.0, 129.0, 7.0, 14.0, 0.85), (-23.0, 16.0, 8.0, 5.0, 0.95),
    (-23.0, -69.5, 9.0, 2.5, 1.0), (36.0, -114.0, 6.0, 6.0, 0.85), (28.0, -105.0, 5.0, 5.0, 0.75),
    (-45.0, -69.0, 6.0, 3.5, 0.7), (27.0, 71.0, 4.0, 4.0, 0.8), (9.0, 47.0, 6.0, 5.0, 0.8),
)  # fmt: skip


def climate(lat: np.ndarray, lon: np.ndarray) -> np.ndarray:
    """What the climate adds to the density of clouds, the same on every day."""
    wet = 0.25 * np.exp(-(((np.abs(lat) - 2.0) / 9.0) ** 2)) + 0.12 * np.exp(-(((np.abs(lat) - 55.0) / 12.0) ** 2))
    return np.asarray((wet - 1.0 * dryness(lat, lon) - 0.34).astype(np.float32))


def weather(seed: int, orbit: int, number: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What the day adds."""
    salt = f"{orbit} {number}"
    # A pass meets fair and foul weather: patches some hundred kilometres wide.
    patches = (
        noise(seed, f"weather {number}", x, y, 520_000.0) * 1.1 + noise(seed, f"front {number}", x, y, 170_000.0) * 0.4
    )
    mood = 1.3 * (fraction(seed, "mood", orbit, number) - 0.5)
    return 0.62 * layers(seed, f"cloud {salt}", x, y, _CELLS_M, _FADE) + (patches + np.float32(mood))


def cirrus(seed: int, orbit: int, number: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How thick high thin cloud is: streaks, long along the wind."""
    turn = 2 * math.pi * fraction(seed, "wind", orbit, number)
    u, v = x * math.cos(turn) + y * math.sin(turn), y * math.cos(turn) - x * math.sin(turn)
    salt = f"{orbit} {number}"
    streaks = (
        noise(seed, f"cirrus {salt}", u / 5, v, 9_000.0) * 0.35 + noise(seed, f"wisp {salt}", u / 6, v, 2_500.0) * 0.15
    )
    return np.asarray(streaks + noise(seed, f"veil {salt}", x, y, 160_000.0) - np.float32(0.1))
