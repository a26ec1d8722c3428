"""Every name of every city, division and country, for looking up what people write."""

from __future__ import annotations

import bisect
import threading
from dataclasses import dataclass

import numpy as np

from infra.offline.facts import countries
from infra.offline.gazetteer import Gazetteer, admin1_names, fold


@dataclass(frozen=True)
class Match:
    """A city found under a name."""

    row: int
    is_alias: bool


class NameIndex:
    """Folded names to gazetteer rows; built on first use, for it takes a few seconds."""

    def __init__(self, gazetteer: Gazetteer) -> None:
        self._gazetteer = gazetteer
        self._lock = threading.Lock()
        self._main: dict[str, list[int]] = {}
        self._alias: dict[str, list[int]] = {}
        self._countries: dict[str, str] = {}
        self._divisions: dict[str, list[str]] = {}
        self._ready = False
        self._sorted: list[str] | None = None

    def prepare(self) -> None:
        """Builds the index unless it is there; safe to call from several threads."""
        with self._lock:
            if self._ready:
                return
            for row in range(len(self._gazetteer)):
                name, aliases = self._gazetteer.names(row)
                main = fold(name)
                self._main.setdefault(main, []).append(row)
                for alias in {fold(alias) for alias in aliases if len(alias) > 3 or not alias.isascii()} - {main, ""}:
                    self._alias.setdefault(alias, []).append(row)
            for iso2, facts in countries().items():
                self._countries[fold(facts.name)] = iso2
                self._countries[iso2.lower()] = iso2
            self._countries |= {
                "usa": "US",
                "uk": "GB",
                "united states of america": "US",
                "great britain": "GB",
                "england": "GB",
            }
            for code, name in admin1_names().items():
                self._divisions.setdefault(fold(name), []).append(code)
            self._ready = True

    def cities(self, name: str) -> list[Match]:
        """Cities with this name or alias, most populous first, own names before aliases."""
        self.prepare()
        key = fold(name)
        population = self._gazetteer.population
        own = sorted(self._main.get(key, []), key=lambda row: (-population[row], row))
        other = sorted(set(self._alias.get(key, [])) - set(own), key=lambda row: (-population[row], row))
        return [Match(row, False) for row in own] + [Match(row, True) for row in other]

    def beginning_with(self, text: str, most: int) -> list[int]:
        """Rows of the most populous cities whose own name begins with a text."""
        self.prepare()
        key, population = fold(text), self._gazetteer.population
        if self._sorted is None:
            self._sorted = sorted(self._main)
        first = bisect.bisect_left(self._sorted, key)
        rows: list[int] = []
        for name in self._sorted[first : first + 2000]:
            if not name.startswith(key):
                break
            rows += self._main[name]
        return sorted(rows, key=lambda row: (-population[row], row))[:most]

    def country(self, name: str) -> str | None:
        """ISO2 of a country's name or code, or None."""
        self.prepare()
        return self._countries.get(fold(name))

    def divisions(self, name: str) -> list[str]:
        """`<ISO2>.<code>` of the first-level divisions with this name."""
        self.prepare()
        return self._divisions.get(fold(name), [])

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
