"""Points of interest: the shops, schools, town halls and streets of the world's places, and its towns."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from infra.offline import ids
from infra.offline.facts import countries
from infra.offline.gazetteer import City, fold
from infra.offline.names import NameIndex
from infra.offline.sign_index import SignIndex
from infra.offline.world import World

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
        if found is None or not 0 <= found[0] < self.world.size:
            return None
        known = self.of_place(found[0])
        slot = found[1] - FIRST_SLOT
        return known[slot] if 0 <= slot < len(known) else None

    def of_place(self, index: int) -> list[Poi]:
        """The points of one place: its street, then its signs in their order along it."""
        place = self.world.place(index)
        rows = [(place.street, "street", 0.0, "")]
        for k, sign in enumerate(place.shops):
            rows.append((sign.lines[0], sign.kind, 9.0 + 15.0 * k, sign.lines[1] if len(sign.lines) > 1 else ""))
        bearing = math.radians(place.bearing_deg)
        scale = 111_195.0 * max(0.05, math.cos(math.radians(place.lat)))
        found = []
        for k, (name, kind, along_m, phone) in enumerate(rows):
            number = int(ids.image_id(self.world.seed, index, FIRST_SLOT + k))
            lat = round(place.lat + along_m * math.cos(bearing) / 111_195.0, 6)
            lon = round(place.lon + along_m * math.sin(bearing) / scale, 6)
            address = "" if kind == "street" else f"{place.street} {1 + place.look % 89 + 2 * k}"
            found.append(Poi(f"B0{number:X}", name, kind, lat, lon, address, phone.removeprefix("Tel. "), place.city))
        return found

    def search(self, text: str, within: str = "", most: int = 50) -> list[Poi]:
        """Points whose names fit a text, best first; `within` is a town or country they must lie in."""
        found: list[Poi] = []
        for match in self.names.cities(text)[:8]:
            found.append(_town(self.world.gazetteer.city(match.row)))
        for hit in self.signs.find(text, most=most):
            same = (poi for poi in self.of_place(hit.place) if poi.name == hit.text)
            if hit.score >= 0.3:
                found += list(same)[:1]
        wanted = fold(within)
        if wanted:
            found = [poi for poi in found if wanted in _region_names(poi.city)]
        return list({poi.poi_id: poi for poi in found}.values())[:most]

    def _town_by_number(self, geoname_id: int) -> Poi | None:
        ids_of = self.world.gazetteer.ids
        row = int(np.searchsorted(ids_of, geoname_id))
        if row >= len(ids_of) or int(ids_of[row]) != geoname_id:
            return None
        return _town(self.world.gazetteer.city(row))


def _town(city: City) -> Poi:
    return Poi(f"G{city.geoname_id}", city.name, "city", round(city.lat, 6), round(city.lon, 6), "", "", city)


def _region_names(city: City) -> set[str]:
    facts = countries()[city.country]
    return {fold(name) for name in (city.name, city.admin1, facts.name, facts.iso2, *city.alternate_names) if name}
