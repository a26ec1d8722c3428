"""Points of interest: the shops, schools, town halls and streets of the world's places, and its towns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from infra.offline import ids
from infra.offline.facts import countries
from infra.offline.gazetteer import City, fold
from infra.offline.names import NameIndex
from infra.offline.place import Place
from infra.offline.sign_index import SignIndex, Street
from infra.offline.sign_words import KINDS, WORDS
from infra.offline.world import World

FIRST_SIDE_STREET = 1 << 30  # of an id's place number; below are places
FIRST_SLOT = 16  # of an id; below are images, from 32 on map features
# (type, code) in the classes of the map service this speaks like.
TYPES = {
    "bakery": ("Food & Beverages;Bakery;Bakery", "050900"),
    "restaurant": ("Food & Beverages;Restaurant;Restaurant", "050100"),
    "pharmacy": ("Medical Service;Pharmacy;Pharmacy", "090601"),
    "market": ("Shopping;Supermarket;Supermarket", "060400"),
    "school": ("Science/Culture & Education Service;School;School", "141200"),
    "town_hall": ("Governmental Organization;Local Government;Town Hall", "130104"),
    "street": ("Place Name & Address;Road Name;Road Name", "190301"),
    "city": ("Place Name & Address;Regular Place Name;City", "190104"),
}


@dataclass(frozen=True)
class Poi:
    """One point of interest."""

    poi_id: str
    name: str
    kind: str  # a key of TYPES
    lat: float
    lon: float
    address: str
    phone: str
    city: City


class PoiTable:
    """All points of interest of a world; nothing is stored, an id says which one it is."""

    def __init__(self, world: World, names: NameIndex, signs: SignIndex) -> None:
        self.world, self.names, self.signs = world, names, signs

    def get(self, poi_id: str) -> Poi | None:
        """The point with an id, or None."""
        if poi_id.startswith("G") and poi_id[1:].isascii() and poi_id[1:].isdigit():
            return self._town_by_number(int(poi_id[1:]))
        if not poi_id.startswith("B0"):
            return None
        try:
            number = str(int(poi_id[2:], 16))
        except ValueError:
            return None
        found = ids.read_image_id(self.world.seed, number)
        if found is None:
            return None
        street: Street | None = None
        if 0 <= found[0] < self.world.size:
            street = self.world.place(found[0])
        elif found[0] >= FIRST_SIDE_STREET:
            street = self.world.side_streets.street(found[0] - FIRST_SIDE_STREET)
        known = self.of_street(street) if street is not None else []
        slot = found[1] - FIRST_SLOT
        return known[slot] if 0 <= slot < len(known) else None

    def of_street(self, street: Street) -> list[Poi]:
        """The points of one street: itself, then its signs in their order along it."""
        rows = [(street.street, "street", 0.0, "")]
        for k, sign in enumerate(street.shops):
            rows.append((sign.lines[0], sign.kind, 9.0 + 15.0 * k, sign.lines[1] if len(sign.lines) > 1 else ""))
        bearing = math.radians(street.bearing_deg)
        scale = 111_195.0 * max(0.05, math.cos(math.radians(street.lat)))
        index = street.index if isinstance(street, Place) else FIRST_SIDE_STREET + street.index
        found = []
        for k, (name, kind, along_m, phone) in enumerate(rows):
            number = int(ids.image_id(self.world.seed, index, FIRST_SLOT + k))
            lat = round(street.lat + along_m * math.cos(bearing) / 111_195.0, 6)
            lon = round(street.lon + along_m * math.sin(bearing) / scale, 6)
            address = "" if kind == "street" else f"{street.street} {1 + street.look % 89 + 2 * k}"
            found.append(Poi(f"B0{number:X}", name, kind, lat, lon, address, phone.removeprefix("Tel. "), street.city))
        return found

    def search(self, text: str, within: str = "", most: int = 50) -> list[Poi]:
        """Points whose names fit a text, best first; `within` is a town or country they must lie in.

        A category ("pharmacy", "Apotheke") with a town lists the town's points of that kind.
        """
        wanted = fold(within)
        towns = {match.row for match in self.names.cities(within)[:8]} if wanted else set()
        land = self.names.country(within) if wanted else None
        kind = category_of(text)
        if kind is not None and towns:
            listed = [poi for row in sorted(towns) for poi in self._of_town(row) if poi.kind == kind]
            return listed[:most]
        found: list[Poi] = []
        for match in self.names.cities(text)[:8]:
            found.append(_town(self.world.gazetteer.city(match.row)))
        for hit in self.signs.find(text, most=most, towns=towns, lands={land} if land else ()):
            if hit.score >= 0.3:
                found += [poi for poi in self.of_street(hit.street) if poi.name == hit.text][:1]
        if wanted:
            found = [poi for poi in found if wanted in _region_names(poi.city)]
        return list({poi.poi_id: poi for poi in found}.values())[:most]

    def complete(self, text: str, within: str = "", most: int = 10) -> list[Poi]:
        """Points whose names begin with a text, as someone types it; else what a search finds."""
        begun = fold(text)
        towns = {match.row for match in self.names.cities(within)[:4]} if within.strip() else set()
        found = [poi for row in sorted(towns) for poi in self._of_town(row) if fold(poi.name).startswith(begun)]
        known = {poi.poi_id for poi in found}
        if not towns and len(begun) >= 3:
            rows = self.names.beginning_with(begun, most)
            found += [_town(self.world.gazetteer.city(row)) for row in rows]
            known = {poi.poi_id for poi in found}
        searched = [poi for poi in self.search(text, within, most) if poi.poi_id not in known]
        exact = [poi for poi in searched if fold(poi.name) == begun]
        return [*exact, *found, *(poi for poi in searched if poi not in exact)][:most]

    def _of_town(self, row: int) -> list[Poi]:
        streets: list[Street] = [self.world.place(index) for index in self.world.places_of_town(row)]
        streets += self.world.side_streets.of_town(row)
        # In the order of their ids: a list that began with the photographed street would give it away.
        return sorted((poi for street in streets for poi in self.of_street(street)), key=lambda poi: poi.poi_id)

    def _town_by_number(self, geoname_id: int) -> Poi | None:
        ids_of = self.world.gazetteer.ids
        row = int(np.searchsorted(ids_of, geoname_id))
        if row >= len(ids_of) or int(ids_of[row]) != geoname_id:
            return None
        return _town(self.world.gazetteer.city(row))


@lru_cache(maxsize=1)
def _categories() -> dict[str, str]:
    """Folded category word, in any language, to a key of TYPES."""
    found = {fold(words.word(kind)): kind for words in WORDS.values() for kind in KINDS}
    found |= {fold(TYPES[kind][0].split(";")[-1]): kind for kind in TYPES}
    return found | {"supermarket": "market", "food": "restaurant", "road": "street", "street": "street"}


def category_of(text: str) -> str | None:
    """The kind of point a category word means, singular or plural, or None where the text is a name."""
    folded = fold(text)
    return _categories().get(folded) or _categories().get(folded.removesuffix("s"))


def _town(city: City) -> Poi:
    return Poi(f"G{city.geoname_id}", city.name, "city", round(city.lat, 6), round(city.lon, 6), "", "", city)


def _region_names(city: City) -> set[str]:
    facts = countries()[city.country]
    return {fold(name) for name in (city.name, city.admin1, facts.name, facts.iso2, *city.alternate_names) if name}
