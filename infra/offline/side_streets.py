"""Streets and shops without imagery: every town has twelve such streets with 28 shops, known to search and maps.

To know the town is not yet to know the street: of all streets a town's directory lists, few were photographed.
Nothing is stored. A family's names are divided into 40 strata and a town has one name of each, by hash; so the towns
that have a given name are found by one vectorised hash over the gazetteer.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from infra.offline.facts import countries
from infra.offline.gazetteer import City, Gazetteer
from infra.offline.place import (
    Place,
    Sign,
    language_of,
    painted_name,
    phone_number,
    point_along,
    point_in_town,
    shop_text,
)
from infra.offline.seeded_random import draws, key_of, scrambled
from infra.offline.words import WORDS, family_of, names_of, telling_words

STRATA = 40
SHARED = 12  # strata whose names photographed streets and shops have too
STREETS = frozenset(range(0, STRATA, 3)) - {36, 39}  # strata whose names are streets: twelve
_ORDER = sorted(STREETS)
_SHOPS = [s for s in range(STRATA) if s not in STREETS]
# Of each street the strata of its own name and of its shops.
_STRATA_OF = [np.array([first, *(s for s in _SHOPS if s % len(_ORDER) == k)]) for k, first in enumerate(_ORDER)]
_KINDS = ("bakery", "pharmacy", "market", "restaurant")
BEHIND_M, SPREAD_M = 215, 120


@dataclass(frozen=True)
class SideStreet:
    """A street that is in the directories and on the map, but in no picture; it has the same parts as a place."""

    index: int  # of its town's row: 16 * row + its number in the town
    city: City
    country: str
    local_name: str
    street: str
    shops: tuple[Sign, ...]
    lat: float
    lon: float
    bearing_deg: float
    paint_seed: int


Street = Place | SideStreet


def map_point(street: Street) -> tuple[float, float]:
    """(lat, lon) at which geocoders and maps enter a street: on it, but nowhere a picture of it was taken.

    Cameras go ahead from the street's own point. The entries of its shops lie up to 54 m ahead of the map's point, so
    every entry is more than 160 m from every camera: the two never agree to three decimals.
    """
    behind_m = BEHIND_M + street.paint_seed % SPREAD_M
    lat, lon = point_along(street.lat, street.lon, street.bearing_deg, -behind_m)
    return round(lat, 7), round(lon, 7)


class SideStreets:
    """The side streets of every town of the gazetteer, by town and by name."""

    def __init__(self, seed: int, gazetteer: Gazetteer) -> None:
        self._seed, self._gazetteer = seed, gazetteer
        self._salt = key_of("side streets", seed) & 0xFFFFFFFF
        self.of_town = lru_cache(maxsize=4096)(self._of_town)
        self.texts = lru_cache(maxsize=65_536)(self._texts)

    def _of_town(self, row: int) -> tuple[SideStreet, ...]:
        """The streets of the town at a gazetteer row."""
        city = self._gazetteer.city(row)
        facts = countries()[city.country]
        texts = [self._texts(row, number) for number in range(len(_ORDER))]
        rng = draws(self._seed, "side", city.geoname_id)
        local_name = painted_name(city, language_of(city, facts, 1.0))
        shops: list[list[Sign]] = [[] for _ in texts]
        for s, drawn in zip(_SHOPS, self._draw(np.full(len(_SHOPS), row), np.array(_SHOPS)).tolist(), strict=True):
            k = s % len(texts)
            shops[k].append(Sign(_kind(drawn), (texts[k][1 + len(shops[k])], phone_number(city, facts, rng))))
        reach_km = 0.4 + min(3.2, math.sqrt(max(city.population, 1000)) / 450)
        streets = []
        for k, (title, *_) in enumerate(texts):
            lat, lon, _ = point_in_town(city, reach_km * math.sqrt(rng.random()), rng.random() * 2 * math.pi)
            streets.append(
                SideStreet(
                    index=16 * row + k,
                    city=city,
                    country=city.country,
                    local_name=local_name,
                    street=title,
                    shops=tuple(shops[k]),
                    lat=lat,
                    lon=lon,
                    bearing_deg=round(rng.random() * 360.0, 2),
                    paint_seed=rng.getrandbits(62),
                )
            )
        return tuple(streets)

    def _texts(self, row: int, number: int) -> tuple[str, ...]:
        """What a street of a town is called, and the shops on it."""
        city = self._gazetteer.city(row)
        facts = countries()[city.country]
        language = language_of(city, facts, 1.0)
        words, strata = WORDS[language], _strata(family_of(language, city.country, facts.continent))
        its = _STRATA_OF[number]
        chosen = self._draw(np.full(len(its), row), its).tolist()
        names = [strata[s][number % len(strata[s])] for s, number in zip(its.tolist(), chosen, strict=True)]
        shops = (shop_text(words, _kind(number), name) for number, name in zip(chosen[1:], names[1:], strict=True))
        return words.street.format(names[0]), *shops

    def streets_with(self, word: str, lands: Collection[str] = ()) -> dict[int, set[int]]:
        """Rows of towns, with the numbers of their streets that may bear a name with this word, or a shop on them."""
        found: dict[int, set[int]] = {}
        rows_of = self._rows_by_family()
        for family, stratum, number, size in _vocabulary().get(word, ()):
            rows = rows_of.get(family)
            if rows is None:
                continue
            if lands:
                known = self._gazetteer
                rows = rows[np.isin(known.country[rows], list(lands)) | np.isin(known.division[rows], list(lands))]
            has = self._draw(rows, np.full(len(rows), stratum)) % np.uint64(size) == number
            street = _ORDER.index(stratum) if stratum in STREETS else stratum % len(_ORDER)
            for row in rows[has].tolist():
                found.setdefault(row, set()).add(street)
        return found

    def knows(self, word: str) -> bool:
        """Whether any side street or shop on it may bear a name with this word."""
        return word in _vocabulary()

    def street(self, index: int) -> SideStreet | None:
        """The street with an index, or None."""
        row, number = divmod(index, 16)
        known = self.of_town(row) if 0 <= row < len(self._gazetteer) else ()
        return known[number] if number < len(known) else None

    def near(self, lat: float, lon: float, reach_km: float = 9.0, most: int = 24) -> list[SideStreet]:
        """Streets of the towns around a point."""
        towns = self._gazetteer.nearest(lat, lon, most)
        return [street for row, away_km in towns if away_km <= reach_km for street in self.of_town(row)]

    def _draw(self, rows: np.ndarray, strata: np.ndarray) -> np.ndarray:
        return scrambled(self._salt, self._gazetteer.ids[rows] * 64 + strata)

    def _rows_by_family(self) -> dict[str, np.ndarray]:
        return _rows_by_family(self._gazetteer)


def _kind(drawn: int) -> str:
    return _KINDS[(drawn >> 20) % 4]


@lru_cache(maxsize=2)
def _rows_by_family(gazetteer: Gazetteer) -> dict[str, np.ndarray]:
    """Rows of the towns that may take their names from a family; where a country has two, the town decides."""
    order = np.argsort(gazetteer.country, kind="stable")
    codes, starts = np.unique(gazetteer.country[order], return_index=True)
    groups = dict(zip(codes.tolist(), np.split(order, starts[1:]), strict=True))
    by_family: dict[str, list[np.ndarray]] = {}
    for iso2, rows in groups.items():
        facts = countries()[iso2]
        for family in {family_of(language, iso2, facts.continent) for language in _languages(iso2)}:
            by_family.setdefault(family, []).append(rows)
    return {family: np.concatenate(parts) for family, parts in by_family.items()}


def _languages(iso2: str) -> set[str]:
    """Languages a country's towns may have on their signs."""
    return {*countries()[iso2].languages, *({"fr", "it"} if iso2 in ("BE", "CA", "CH") else ())}


@lru_cache(maxsize=64)
def _strata(family: str) -> list[list[str]]:
    """A family's names in strata: first those that places have, then longer ones."""
    short, long = names_of(family)
    rng = draws("strata", family)
    rng.shuffle(short)
    rng.shuffle(long)
    return [short[s::SHARED] for s in range(SHARED)] + [long[s :: STRATA - SHARED] for s in range(STRATA - SHARED)]


@lru_cache(maxsize=1)
def _vocabulary() -> dict[str, list[tuple[str, int, int, int]]]:
    """Telling word -> (family, stratum, number in it, its size) of the names it stands in."""
    patterns: dict[str, set[str]] = {}
    for iso2, facts in countries().items():
        for language in _languages(iso2):
            patterns.setdefault(family_of(language, iso2, facts.continent), set()).add(WORDS[language].street)
    by_language: dict[str, list[tuple[str, int, int, int]]] = {}
    for family, streets in patterns.items():
        for s, group in enumerate(_strata(family)):
            for number, name in enumerate(group):
                texts = [name, *(street.format(name) for street in streets)] if s in STREETS else [name]
                for word in {word for text in texts for word in telling_words(text)}:
                    by_language.setdefault(word, []).append((family, s, number, len(group)))
    return by_language
