"""What the models know of places: the open gazetteer by name as a sign writes it, and how well each model knows a town.

A large town is known by nearly every model, a village by few; a small town beside a large one is known sooner than one
far out. What is known is remembered more or less exactly.
"""

import itertools
import math
import random
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from cachetools import cached

from infra.offline.facts import area_code, countries
from infra.offline.gazetteer import NameIndex, admin1_names, distance_km, gazetteer
from infra.offline.seeded_random import draws, fraction
from infra.offline.words import KINDS, WORDS, fold, one_letter_off

FAMOUS_POPULATION = 50_000  # from here on a city is known by more than one Latin name
MIN_FUZZY_LETTERS = 6  # one letter wrong in a shorter word makes another word
_WORD = re.compile(r"[^\W\d_]+(?:['’.-][^\W\d_]+)*")
# Street, shop and direction words of many languages that also happen to be the names of towns.
_ORDINARY_WORDS = (
    "centro center centre central hotel bar cafe most same nice of la le los las san santa saint st port park "
    "station stadt markt market gate mall police bank taxi bus stop post school university victoria union "
    "farmacia pharmacy norte sur north south east west old new royal grand plaza mercado apotek apteka"
)
KM_PER_DEGREE = 111.2
LARGE_TOWN = 300_000
SHADOW_KM = 80.0  # how far a large town's fame reaches, as a loss of one in the logarithm


@dataclass(frozen=True)
class Place:
    name: str
    lat: float
    lon: float
    country: str  # ISO 3166 alpha-2
    population: int
    division: str  # `<ISO2>.<code>`, as in `admin1_names`


@dataclass(frozen=True)
class Match:
    """A place whose name stands in a text; `exact` is false where one letter differs."""

    place: Place
    seen: str
    exact: bool
    primary: bool


class PlaceNames:
    """Cities by name, also by one that is a letter off."""

    def __init__(self) -> None:
        source = gazetteer()
        self._index = NameIndex(source)
        self._index.prepare()
        self.places = [
            Place(source.names(row)[0], float(lat), float(lon), str(country), int(population), source.region_code(row))
            for row, (lat, lon, country, population) in enumerate(
                zip(source.lat, source.lon, source.country, source.population, strict=True)
            )
        ]
        # The same signs are read over and over: eight answers a picture, and a plan after every tool call.
        self.nearly = lru_cache(maxsize=50_000)(self._nearly)

    def named(self, name: str) -> list[Match]:
        """Places of exactly this name, the most populous first."""
        matches = []
        for found in self._index.cities(name):
            place = self.places[found.row]
            # Latin aliases of a small town are transliterations that no sign carries.
            if not found.is_alias or place.population >= FAMOUS_POPULATION or not fold(name).isascii():
                matches.append(Match(place, name, True, not found.is_alias))
        return sorted(matches, key=lambda match: -match.place.population)

    def _nearly(self, name: str) -> list[Match]:
        """Places whose name differs by one letter, the most populous first."""
        key = fold(name)
        if len(key) < MIN_FUZZY_LETTERS:
            return []
        rows = [row for spelt in dict.fromkeys(one_letter_off(key)) for row in self._index.own_name(spelt)]
        return sorted((Match(self.places[row], name, False, True) for row in rows), key=lambda m: -m.place.population)

    def mentions(self, text: str, fuzzy: bool = True) -> list[Match]:
        """Places a text names, the longest names first; words inside a longer name are not counted again."""
        taken: list[tuple[int, int]] = []
        mentioned: list[Match] = []
        for start, end, phrase in _phrases(text):
            if any(start < b and a < end for a, b in taken) or fold(phrase) in _ordinary():
                continue
            matches = self.named(phrase) or (self.nearly(phrase) if fuzzy else [])
            if matches:
                taken.append((start, end))
                mentioned += matches[:12]
        return mentioned

    def biggest(self, country: str) -> list[Place]:
        """The country's cities, the most populous first."""
        return _by_country().get(country, [])


@cached({}, condition=threading.Condition())
def place_names() -> PlaceNames:
    """The one index of this process, built at first use (about two seconds) and once for all threads."""
    return PlaceNames()


@lru_cache(maxsize=1)
def _ordinary() -> frozenset[str]:
    sign_words = {fold(part) for words in WORDS.values() for kind in KINDS for part in words.word(kind).split()}
    streets = {fold(words.street_word) for words in WORDS.values()}
    return frozenset({*_ORDINARY_WORDS.split(), *sign_words, *streets})


@lru_cache(maxsize=1)
def _by_country() -> dict[str, list[Place]]:
    grouped: dict[str, list[Place]] = defaultdict(list)
    for place in sorted(place_names().places, key=lambda p: -p.population):
        grouped[place.country].append(place)
    return grouped


def _phrases(text: str) -> Iterator[tuple[int, int, str]]:
    """Runs of up to four words, longest first; scripts without spaces give runs of characters."""
    words = [(m.start(), m.end(), m.group()) for m in _WORD.finditer(text)]
    for size in (4, 3, 2, 1):
        for i in range(len(words) - size + 1):
            start, end = words[i][0], words[i + size - 1][1]
            phrase = text[start:end]
            if len(phrase) >= 4 or (size == 1 and len(phrase) == 3) or ord(phrase[0]) >= 0x3040:
                yield start, end, phrase
    for start, end, word in words:
        if ord(word[0]) >= 0x3040:
            for size in range(min(6, len(word) - 1), 1, -1):
                for i in range(start, end - size + 1):
                    yield i, i + size, text[i : i + size]


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
    return float(distance_km(lat, lon, np.array(other_lat), np.array(other_lon)))


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
    divisions: dict[tuple[str, int], tuple[str, ...]] = {}
    for code, name in admin1_names().items():
        if code[:2] in countries():
            key = code[:2], area_code(code[:2], name)
            divisions[key] = (*divisions.get(key, ()), code)
    return divisions


def division_of_area(country: str, area: int) -> str:
    """The division whose phone numbers begin with these area digits, where it is the only one; else empty."""
    codes = _divisions().get((country, area), ())
    return admin1_names()[codes[0]] if len(codes) == 1 else ""


@lru_cache(maxsize=4096)
def towns_of_area(country: str, area: int) -> tuple[Place, ...]:
    """The largest towns of the divisions with these area digits, the most populous first."""
    codes = set(_divisions().get((country, area), ()))
    inside = (place for place in place_names().biggest(country) if place.division in codes)
    return tuple(itertools.islice(inside, 6))


def _logistic(odds: float) -> float:
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, odds))))
