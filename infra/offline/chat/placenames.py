"""What the models know of places: the open gazetteer by name as a sign writes it, and how well each model knows a town.

A large town is known by nearly every model, a village by few; a small town beside a large one is known sooner than one
far out. What is known is remembered more or less exactly.
"""

import math
import random
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from cachetools import cached

from infra.offline.facts import area_code, countries
from infra.offline.gazetteer import NameIndex, admin1_names, distance_km, gazetteer
from infra.offline.seeded_random import draws, fraction
from infra.offline.words import KINDS, WORDS, fold, one_letter_off

T = TypeVar("T")
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
SAME_KM = 25.0
SHADOW_KM = 80.0  # how far a large town's fame reaches, as a loss of one in the logarithm


@dataclass(frozen=True)
class Place:
    name: str
    lat: float
    lon: float
    country: str  # ISO 3166 alpha-2
    population: int = 0
    division: str = ""  # `<ISO2>.<code>`, as in `admin1_names`

    @property
    def country_name(self) -> str:
        return country_name(self.country)

    @property
    def full_name(self) -> str:
        """Town and country."""
        return f"{self.name}, {self.country_name}"

    @property
    def label(self) -> str:
        """The same, or the country alone where no town is known."""
        return self.full_name if self.name else self.country_name

    @property
    def region(self) -> str:
        """The first-level division it lies in, as a person would say it."""
        row, away_km = gazetteer().nearest(self.lat, self.lon)[0]
        return admin1_names().get(gazetteer().region_code(row), "") if away_km < 60 else ""

    def is_at(self, other: "Place") -> bool:
        """Whether an answer may mean either."""
        return apart_km(self.lat, self.lon, other.lat, other.lon) < SAME_KM


def country_name(code: str) -> str:
    facts = countries().get(code)
    return facts.name if facts else code


@dataclass(frozen=True)
class Match:
    """A place whose name stands in a text; `exact` is false where one letter differs."""

    place: Place
    seen: str
    exact: bool = True
    primary: bool = True

    @property
    def is_name(self) -> bool:
        """Whether it is written as a name: most words of prose are some village's name, but names have capitals."""
        return self.seen[:1].isupper() or not self.seen.isascii()


class PlaceNames:
    """Cities by name, also by one that is a letter off."""

    def __init__(self) -> None:
        source = gazetteer()
        self.index = NameIndex(source)
        self.index.prepare()
        columns = (source.lat, source.lon, source.country, source.population, source.division)
        self.places = [
            Place(source.names(row)[0], *facts)
            for row, facts in enumerate(zip(*(column.tolist() for column in columns), strict=True))
        ]
        self._by_country: dict[str, list[Place]] = defaultdict(list)
        for place in sorted(self.places, key=lambda place: -place.population):
            self._by_country[place.country].append(place)
        # The same signs are read over and over: eight answers a picture, and a plan after every tool call.
        self.nearly = lru_cache(maxsize=50_000)(self._nearly)

    def named(self, name: str) -> list[Match]:
        """Places of exactly this name, the most populous first."""
        matches = []
        for found in self.index.cities(name):
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
        rows = [row for spelt in dict.fromkeys(one_letter_off(key)) for row in self.index.own_name(spelt)]
        return sorted((Match(self.places[row], name, False, True) for row in rows), key=lambda m: -m.place.population)

    def known(self, phrase: str, fuzzy: bool = True) -> list[Match]:
        """The likeliest places of this name; none for words that stand on signs everywhere."""
        if fold(phrase) in _ordinary():
            return []
        return (self.named(phrase) or (self.nearly(phrase) if fuzzy else []))[:12]

    def mentions(self, text: str, fuzzy: bool = True) -> list[Match]:
        """Places a text names, the longest names first."""
        return [m for _, _, matches in longest_names(text, lambda name: self.known(name, fuzzy)) for m in matches]

    def biggest(self, country: str) -> list[Place]:
        """The country's cities, the most populous first."""
        return self._by_country.get(country, [])


@cached({}, condition=threading.Condition())
def place_names() -> PlaceNames:
    """The one index of this process, built at first use (about two seconds) and once for all threads."""
    return PlaceNames()


@lru_cache(maxsize=1)
def _ordinary() -> frozenset[str]:
    sign_words = {fold(part) for words in WORDS.values() for kind in KINDS for part in words.word(kind).split()}
    streets = {fold(words.street_word) for words in WORDS.values()}
    return frozenset({*_ORDINARY_WORDS.split(), *sign_words, *streets})


def longest_names(text: str, find: Callable[[str], list[T]]) -> Iterator[tuple[int, str, list[T]]]:
    """(start, phrase, what is found) of the phrases of a text that `find` knows, the longest first.

    Words inside a longer name are not counted again.
    """
    taken: list[tuple[int, int]] = []
    for start, end, phrase in _phrases(text):
        if not any(start < b and a < end for a, b in taken) and (found := find(phrase)):
            taken.append((start, end))
            yield start, phrase, found


def _phrases(text: str) -> Iterator[tuple[int, int, str]]:
    """Runs of up to five words, longest first; scripts without spaces give runs of characters."""
    words = [(m.start(), m.end(), m.group()) for m in _WORD.finditer(text)]
    for size in (5, 4, 3, 2, 1):
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
    return logistic((fame + accident - memory.half_known) / memory.spread)


def recalls(place: Place, memory: Memory, dice: random.Random, temperature: float) -> bool:
    """Whether the name means something to the model this time; at temperature 0 its likelier side decides."""
    known = familiarity(place, memory)
    if temperature <= 0:
        return known >= 0.5
    return dice.random() < logistic(log_odds(known) / max(0.3, temperature))


def remembered(place: Place, memory: Memory, dice: random.Random, temperature: float) -> tuple[float, float]:
    """The town's coordinates as the model remembers them: its own lasting error, and the draw's."""
    known = familiarity(place, memory)
    away_km = memory.vague_km * 10 ** (1.6 * (0.6 - known))
    bearing = 2 * math.pi * fraction("bearing", memory.name, place.name, place.country)
    if temperature > 0:
        away_km *= math.exp(temperature * dice.gauss(0, 1.0))
        bearing += temperature * dice.gauss(0, 1.0)
    north = place.lat + away_km / KM_PER_DEGREE * math.cos(bearing)
    east = place.lon + away_km / KM_PER_DEGREE * math.sin(bearing) / max(0.1, math.cos(math.radians(place.lat)))
    return max(-89.9, min(89.9, north)), (east + 180) % 360 - 180


def apart_km(lat: float, lon: float, other_lat: float, other_lon: float) -> float:
    """Between two points."""
    return float(distance_km(lat, lon, np.array(other_lat), np.array(other_lon)))


@lru_cache(maxsize=20_000)
def _fame_of_neighbour(place: Place) -> float:
    lats, lons, people = _large_towns()
    flat = np.hypot(lats - place.lat, ((lons - place.lon + 180) % 360 - 180) * math.cos(math.radians(place.lat)))
    return float((np.log10(people) - 1.3 - flat * KM_PER_DEGREE / SHADOW_KM).max())


@lru_cache(maxsize=1)
def _large_towns() -> np.ndarray:
    """Rows of latitudes, longitudes and populations."""
    large = (place for place in place_names().places if place.population >= LARGE_TOWN)
    return np.array([(place.lat, place.lon, place.population) for place in large]).T


@lru_cache(maxsize=4096)
def _divisions_of_area(country: str, area: int) -> list[str]:
    """The divisions (`<ISO2>.<code>`) whose phone numbers begin with these area digits."""
    return [code for code, name in admin1_names().items() if code[:2] == country and area_code(country, name) == area]


def division_of_area(country: str, area: int) -> str:
    """The name of the division whose phone numbers begin so, where it is the only one; else empty."""
    codes = _divisions_of_area(country, area)
    return admin1_names()[codes[0]] if len(codes) == 1 else ""


@lru_cache(maxsize=4096)
def towns_of_area(country: str, area: int) -> list[Place]:
    """The largest towns of the divisions with these area digits, the most populous first."""
    codes = _divisions_of_area(country, area)
    return [place for place in place_names().biggest(country) if place.division in codes][:6]


def logistic(odds: float) -> float:
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, odds))))


def log_odds(chance: float) -> float:
    chance = max(1e-4, min(1 - 1e-4, chance))
    return math.log(chance / (1 - chance))
