"""What a model has by heart of towns and area codes: a probability, not a list.

A large town is known by nearly every model, a village by few; a small town beside a large one is known sooner than one
far out. What is known is remembered more or less exactly. All of it is general: the gazetteer and facts of countries.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from infra.offline.chat.placenames import Place, place_names
from infra.offline.facts import area_code, countries
from infra.offline.gazetteer import EARTH_RADIUS_KM, admin1_names, gazetteer
from infra.offline.seeded_random import draws, fraction

KM_PER_DEGREE = 111.2
LARGE_TOWN = 300_000
SHADOW_KM = 80.0  # how far a large town's fame reaches, as a loss of one in the logarithm


@dataclass(frozen=True)
class Memory:
    """One model's memory of the map."""

    name: str
    half_known: float  # log10 of the population of which it knows every second town
    spread: float  # how gently knowledge falls off with it
    vague_km: float  # how far off it remembers a town it knows well


def familiarity(place: Place, memory: Memory) -> float:
    """The chance that the model knows a town: by population, by distance from a large town, and by accident."""
    fame = max(math.log10(1 + place.population), _fame_of_neighbour(place))
    accident = draws("known", memory.name, place.name, place.country, round(place.lat, 2)).gauss(0, 0.35)
    return _logistic((fame + accident - memory.half_known) / memory.spread)


def recalls(place: Place, memory: Memory, dice: random.Random, temperature: float) -> bool:
    """Whether the name means something to the model this time; at temperature 0 its likelier side decides."""
    known = familiarity(place, memory)
    if temperature <= 0:
        return known >= 0.5
    odds = math.log(max(1e-6, known) / max(1e-6, 1 - known)) / max(0.3, temperature)
    return dice.random() < _logistic(odds)


def remembered(place: Place, memory: Memory, dice: random.Random, temperature: float) -> tuple[float, float]:
    """The town's coordinates as the model remembers them: its own lasting error, and the draw's."""
    known = familiarity(place, memory)
    away_km = memory.vague_km * 10 ** (1.6 * (0.6 - known))
    bearing = 2 * math.pi * fraction("bearing", memory.name, place.name, place.country)
    if temperature > 0:
        away_km *= math.exp(temperature * dice.gauss(0, 1.0))
        bearing += temperature * dice.gauss(0, 1.0)
    return moved(place.lat, place.lon, away_km, bearing)


def apart_km(lat: float, lon: float, other_lat: float, other_lon: float) -> float:
    """Between two points."""
    phi, other_phi = math.radians(lat), math.radians(other_lat)
    half = math.sin((other_phi - phi) / 2) ** 2
    half += math.cos(phi) * math.cos(other_phi) * math.sin(math.radians(other_lon - lon) / 2) ** 2
    return 2 * EARTH_RADIUS_KM * math.asin(math.sqrt(min(1.0, half)))


def moved(lat: float, lon: float, away_km: float, bearing: float) -> tuple[float, float]:
    """The point so far away in a direction."""
    north = lat + away_km / KM_PER_DEGREE * math.cos(bearing)
    east = lon + away_km / KM_PER_DEGREE * math.sin(bearing) / max(0.1, math.cos(math.radians(lat)))
    return max(-89.9, min(89.9, north)), (east + 180) % 360 - 180


@lru_cache(maxsize=20_000)
def _fame_of_neighbour(place: Place) -> float:
    lats, lons, people = _large_towns()
    flat = np.hypot(lats - place.lat, ((lons - place.lon + 180) % 360 - 180) * math.cos(math.radians(place.lat)))
    fame = np.log10(people) - 1.3 - flat * KM_PER_DEGREE / SHADOW_KM
    return float(fame.max())


@lru_cache(maxsize=1)
def _large_towns() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    large = [place for place in place_names().places if place.population >= LARGE_TOWN]
    return (
        np.array([place.lat for place in large]),
        np.array([place.lon for place in large]),
        np.array([float(place.population) for place in large]),
    )


@lru_cache(maxsize=1)
def _divisions() -> dict[tuple[str, int], tuple[str, ...]]:
    """(country, area digits) -> divisions (`<ISO2>.<code>`) whose phone numbers begin so."""
    found: dict[tuple[str, int], tuple[str, ...]] = {}
    for code, name in admin1_names().items():
        if code[:2] in countries():
            key = code[:2], area_code(code[:2], name)
            found[key] = (*found.get(key, ()), code)
    return found


@lru_cache(maxsize=4096)
def towns_of_area(country: str, area: int) -> tuple[Place, ...]:
    """The largest towns of the divisions with these area digits, the most populous first."""
    codes = set(_divisions().get((country, area), ()))
    if not codes:
        return ()
    source, places = gazetteer(), place_names().places
    rows = np.flatnonzero(source.country == country)
    rows = rows[np.argsort(-source.population[rows], kind="stable")]
    inside = [int(row) for row in rows if source.region_code(int(row)) in codes]
    return tuple(places[row] for row in inside[:6])


def _logistic(odds: float) -> float:
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, odds))))
