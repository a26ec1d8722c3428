"""Every name of every city, division and country, for looking up what people write."""

from __future__ import annotations

import bisect
import threading
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from infra.offline.facts import countries
from infra.offline.gazetteer import Gazetteer, admin1_names, fold


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


_BUILDING = threading.Lock()


@lru_cache(maxsize=1)
def _lists_of(gazetteer: Gazetteer) -> _Lists:
    """Built once for all worlds of a process: they share the gazetteer, and it takes a few seconds."""
    main: dict[str, list[int]] = {}
    alias: dict[str, list[int]] = {}
    for row in range(len(gazetteer)):
        name, aliases = gazetteer.names(row)
        own = fold(name)
        main.setdefault(own, []).append(row)
        for other in {fold(one) for one in aliases if len(one) > 3 or not one.isascii()} - {own, ""}:
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
        "england": "GB",
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
        with _BUILDING:
            return _lists_of(self._gazetteer)

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

    def middle_of_country(self, iso2: str) -> tuple[float, float] | None:
        """Middle of the country's cities, or None when the gazetteer has none there."""
        inside = self._gazetteer.country == iso2
        return self._middle(inside)

    def middle_of_division(self, code: str) -> tuple[float, float] | None:
        """Middle of a division's cities, weighted by people."""
        iso2, name = code[:2], admin1_names()[code]
        rows = np.flatnonzero(self._gazetteer.country == iso2)
        inside = np.zeros(len(self._gazetteer), bool)
        inside[[row for row in rows if self._gazetteer.city(int(row)).admin1 == name]] = True
        return self._middle(inside)

    def _middle(self, inside: np.ndarray) -> tuple[float, float] | None:
        if not inside.any():
            return None
        weight = np.sqrt(self._gazetteer.population[inside] + 1.0)
        lat, lon = self._gazetteer.lat[inside], self._gazetteer.lon[inside]
        # Longitudes are averaged around the first: Fiji and Russia lie on both sides of the date line.
        around = (lon - lon[0] + 180.0) % 360.0 - 180.0
        east = (lon[0] + np.average(around, weights=weight) + 180.0) % 360.0 - 180.0
        return float(np.average(lat, weights=weight)), float(east)
