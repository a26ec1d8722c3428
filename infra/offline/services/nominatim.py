"""Nominatim: search and reverse in its JSON, over the gazetteer and the streets of the world."""

from __future__ import annotations

import json
import math
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from infra.offline.country_map import country_map
from infra.offline.facts import countries
from infra.offline.gazetteer import City, admin1_names, fold
from infra.offline.names import NameIndex
from infra.offline.place import Place
from infra.offline.seeded_random import key_of
from infra.offline.sign_index import SignIndex, Street
from infra.offline.world import World

LICENCE = "Data © OpenStreetMap contributors, ODbL 1.0. http://osm.org/copyright"
MOST_RESULTS = 40
# Farther than this from any town lies, nearly always, the sea.
REACH_KM = 100.0
STREET_REACH_M = 250.0


class Nominatim:
    """Geocoding over a world."""

    def __init__(self, world: World, names: NameIndex, signs: SignIndex) -> None:
        self.world, self.names, self.signs = world, names, signs

    def routes(self) -> list[Route]:
        """The routes to mount."""
        return [
            Route("/nominatim/search", self._search),
            Route("/nominatim/reverse", self._reverse),
            Route("/nominatim/status", lambda request: JSONResponse({"status": 0, "message": "OK"})),
        ]

    async def _search(self, request: Request) -> Response:
        query = request.query_params
        text = query.get("q", "").strip()
        if not text:
            text = ", ".join(query[name] for name in ("street", "city", "state", "country") if query.get(name))
        if not text:
            return _bad("Nothing to search for.")
        limit = query.get("limit", "10")
        if not limit.isdigit() or int(limit) < 1:
            return _bad("Parameter 'limit' must be a number.")
        allowed = {code.strip().upper() for code in query.get("countrycodes", "").split(",") if code.strip()}
        most = min(int(limit), MOST_RESULTS)
        found = await anyio.to_thread.run_sync(self.search, text, MOST_RESULTS if allowed else most)
        if allowed:
            found = [row for row in found if row["address"].get("country_code", "").upper() in allowed]
        return _json([_shaped(row, query) for row in found[:most]])

    async def _reverse(self, request: Request) -> Response:
        query = request.query_params
        try:
            lat, lon = float(query["lat"]), float(query["lon"])
        except (KeyError, ValueError):
            return _bad("Floating-point number expected for parameters 'lat' and 'lon'.")
        if not (-90 <= lat <= 90 and math.isfinite(lon)):
            return _bad("Parameter 'lat' must be between -90 and 90.")
        zoom = query.get("zoom", "18")
        if not zoom.isdigit():
            return _bad("Parameter 'zoom' must be a number.")
        found = await anyio.to_thread.run_sync(self.reverse, lat, (lon + 180.0) % 360.0 - 180.0, int(zoom))
        return _json({"error": "Unable to geocode"} if found is None else _shaped(found, query))

    def reverse(self, lat: float, lon: float, zoom: int = 10) -> dict[str, Any] | None:
        """What lies at a point: a street from zoom 16 on, else a town; None on the open sea.

        The country is the one whose land it is, even where the nearest town lies across the border.
        """
        iso2 = country_map().at(lat, lon)
        if zoom <= 4 and iso2 is not None:
            return _area_result(iso2, None, (lat, lon))
        near: tuple[int, float] | None = self.world.gazetteer.nearest(lat, lon)[0]
        if iso2 is not None and near is not None and self.world.gazetteer.country[near[0]] != iso2:
            near = self.world.gazetteer.nearest_in(iso2, lat, lon)
        if near is None or near[1] > REACH_KM:
            return None if iso2 is None else _area_result(iso2, None, (lat, lon))
        row = _city_result(self.world.gazetteer.city(near[0]), False)
        return (self._street_at(lat, lon) if zoom >= 16 else None) or row

    def _street_at(self, lat: float, lon: float) -> dict[str, Any] | None:
        half_lat = STREET_REACH_M / 111_195.0
        half_lon = half_lat / max(0.05, math.cos(math.radians(lat)))
        near = self.world.places_near(lon - half_lon, lat - half_lat, lon + half_lon, lat + half_lat)
        streets: list[Street] = [self.world.place(index) for index in near]
        streets += self.world.side_streets.near(lat, lon)
        away = [math.hypot((s.lat - lat) / half_lat, (s.lon - lon) / half_lon) for s in streets]
        if not away or min(away) > 1.0:
            return None
        best = away.index(min(away))
        street = streets[best]
        number = street.index if isinstance(street, Place) else 10**7 + street.index
        row = _city_result(street.city, False)
        return _road_result(row, street.street, street.lat, street.lon, number, 1.0 - away[best])

    def search(self, text: str, most: int = MOST_RESULTS) -> list[dict[str, Any]]:
        """Ranked candidates for a free text, best first; more than `most` may be found."""
        parts = [part.strip() for part in text.split(",") if fold(part)]
        if not parts:
            return []
        found = self._named(parts[0], parts[1:])
        if not found and len(parts) == 1:
            found = self._split_words(parts[0].split(), most)
        if not found and len(parts) > 1:
            # A street or shop before its town: "Rue Belmont, Lyon" or "12 Rue Belmont, Lyon, France".
            found = self._signs(parts[0], parts[1:], most)
        without = " ".join(word for word in parts[0].split() if not any(ch.isdigit() for ch in word))
        if not found and without != parts[0] and fold(without):  # a house number or postal code before the name
            found = self.search(", ".join([without, *parts[1:]]), most)
        return sorted(found, key=lambda row: -row["importance"])

    def _split_words(self, words: list[str], most: int) -> list[dict[str, Any]]:
        """A text without commas: the longest beginning that is a name, the rest is where it lies."""
        for end in range(len(words) - 1, 0, -1):
            found = self._named(" ".join(words[:end]), [" ".join(words[end:])])
            if found:
                return found
        return self._signs(" ".join(words), [], most)

    def _named(self, name: str, context: list[str]) -> list[dict[str, Any]]:
        found = []
        iso2 = self.names.country(name)
        if iso2 is not None and not context and len(fold(name)) > 2:
            middle = self.names.middle_of_country(iso2)
            if middle is not None:
                found.append(_area_result(iso2, None, middle))
        for code in self.names.divisions(name):
            if all(self._fits(word, code[:2], "") for word in context):
                middle = self.names.middle_of_division(code)
                if middle is not None:
                    found.append(_area_result(code[:2], code, middle))
        for match in self.names.cities(name)[:MOST_RESULTS]:
            city = self.world.gazetteer.city(match.row)
            if all(self._fits(word, city.country, city.admin1) for word in context):
                found.append(_city_result(city, match.is_alias))
        return found

    def _fits(self, text: str, iso2: str, admin1: str) -> bool:
        """Whether a part of an address names the country or division (postal codes say nothing and fit)."""
        key = fold(text)
        if any(ch.isdigit() for ch in key) or not key:
            return True
        return self.names.country(key) == iso2 or bool(admin1 and (key == fold(admin1) or key in fold(admin1).split()))

    def _signs(self, text: str, context: list[str], most: int) -> list[dict[str, Any]]:
        towns = {match.row for word in context[:1] for match in self.names.cities(word)[:20]}
        lands = {iso2 for word in context if (iso2 := self.names.country(word)) is not None}
        found = []
        # Without a context none is left out below, and they come in the order of their importance.
        for hit in self.signs.find(text, most=MOST_RESULTS if context else most, towns=towns, lands=lands):
            if hit.score < 0.45:
                continue
            street = hit.street
            names = {
                fold(street.city.name),
                fold(street.local_name),
                *(fold(name) for name in street.city.alternate_names),
            }
            where = [word for word in context if fold(word) not in names]
            if all(self._fits(word, street.country, street.city.admin1) for word in where):
                row = _city_result(street.city, True)
                road = street.street if fold(street.street) == fold(hit.text) else hit.text
                number = street.index if isinstance(street, Place) else 10**7 + street.index
                found.append(_road_result(row, road, street.lat, street.lon, number, hit.score))
        return found


def _city_result(city: City, is_alias: bool) -> dict[str, Any]:
    facts = countries()[city.country]
    kind = "city" if city.population >= 50_000 else "town" if city.population >= 8_000 else "village"
    address = {kind: city.name}
    if city.admin1:
        address["state"] = city.admin1
    address |= {"country": facts.name, "country_code": city.country.lower()}
    importance = 0.3 + 0.07 * math.log10(max(10, city.population)) - (0.12 if is_alias else 0.0)
    half = 0.01 + min(0.3, math.sqrt(max(city.population, 500)) / 9000)
    rank = {"city": 16, "town": 18, "village": 19}[kind]
    what = ("boundary", "administrative", kind, rank)
    return _result(city.geoname_id, *what, importance, city.name, address, city.lat, city.lon, half)


def _area_result(iso2: str, code: str | None, middle: tuple[float, float]) -> dict[str, Any]:
    facts = countries()[iso2]
    address = {"country": facts.name, "country_code": iso2.lower()}
    name, kind, rank, importance, half = facts.name, "country", 4, 0.95, 5.0
    if code is not None:
        name, kind, rank, importance, half = admin1_names()[code], "state", 8, 0.72, 1.5
        address = {"state": name} | address
    number = int(key_of("area", iso2, code) % 10**7)
    return _result(number, "boundary", "administrative", kind, rank, importance, name, address, *middle, half)


def _road_result(row: dict[str, Any], road: str, lat: float, lon: float, place: int, score: float) -> dict[str, Any]:
    address = {"road": road} | row["address"]
    return _result(
        10**8 + place,
        "highway",
        "residential",
        "road",
        26,
        0.05 + 0.3 * min(1.0, score),
        road,
        address,
        lat,
        lon,
        0.002,
    )


def _result(
    number: int, category: str, kind: str, addresstype: str, rank: int, importance: float, name: str,
    address: dict[str, str], lat: float, lon: float, half_deg: float,
) -> dict[str, Any]:  # fmt: skip
    shown = [value for key, value in address.items() if key != "country_code"]
    return {
        "place_id": 10**8 + number,
        "licence": LICENCE,
        "osm_type": "way" if category == "highway" else "relation",
        "osm_id": number,
        "lat": f"{lat:.7f}",
        "lon": f"{lon:.7f}",
        "category": category,
        "type": kind,
        "place_rank": rank,
        "importance": round(importance, 12),
        "addresstype": addresstype,
        "name": name,
        "display_name": ", ".join(dict.fromkeys(shown)),
        "address": address,
        "boundingbox": [f"{edge:.7f}" for edge in (lat - half_deg, lat + half_deg, lon - half_deg, lon + half_deg)],
    }


def _shaped(row: dict[str, Any], query: Any) -> dict[str, Any]:
    """The result in the asked format: plain `json` says class where `jsonv2` says category."""
    shown = dict(row)
    # Upstream shows the address by default in reverse, in search only when asked.
    default = "1" if "lat" in query else "0"
    if query.get("addressdetails", default) != "1":
        del shown["address"]
    if query.get("format", "jsonv2") == "json":
        shown = {("class" if key == "category" else key): value for key, value in shown.items()}
    return shown


def _json(value: Any) -> Response:
    return Response(json.dumps(value, ensure_ascii=False), media_type="application/json; charset=utf-8")


def _bad(message: str) -> Response:
    return JSONResponse({"error": {"code": 400, "message": message}}, 400)
