"""Geocoding over the gazetteer and the streets of the world, as Nominatim, Google and OpenCage answer it."""

import base64
import json
import math
import re
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from infra.offline.country_map import country_map
from infra.offline.facts import CONTINENTS, countries
from infra.offline.gazetteer import City, NameIndex, admin1_names
from infra.offline.place import Place
from infra.offline.seeded_random import key_of
from infra.offline.side_streets import Street, map_point
from infra.offline.sign_index import SignIndex
from infra.offline.words import fold
from infra.offline.world import World

LICENCE = "Data © OpenStreetMap contributors, ODbL 1.0. http://osm.org/copyright"
MOST_RESULTS = 50
_FORMATS = ("xml", "geojson", "geocodejson", "json", "jsonv2")
_POINT = re.compile(r"\s*(-?\d+\.\d+)[\s,]+(-?\d+\.\d+)\s*")
# Farther than this from any town lies, nearly always, the sea.
REACH_KM = 100.0
_ALL = ["GET", "HEAD", "POST", "PUT", "DELETE"]
STREET_REACH_M = 250.0
GOOGLE_KEY = "AIza-offline-world"  # public: it opens only this world
_GOOGLE_NO_KEY = (
    "You must use an API key to authenticate each request to Google Maps Platform APIs. For additional information, "
    "please refer to http://g.co/dev/maps-no-account"
)
_GOOGLE_KINDS = {
    "country": ["country", "political"],
    "state": ["administrative_area_level_1", "political"],
    "city": ["locality", "political"],
    "town": ["locality", "political"],
    "village": ["locality", "political"],
    "road": ["route"],
}
_GOOGLE_MOST = 5
OPENCAGE_KEY = "0ff11e0ff11e0ff11e0ff11e0ff11e00"  # public: it opens only this world
RATE_LIMIT = 2500
_CONFIDENCE_KM = ((0.25, 10), (0.5, 9), (1, 8), (5, 7), (7.5, 6), (10, 5), (15, 4), (20, 3), (25, 2))


class Nominatim:
    """Geocoding over a world."""

    def __init__(self, world: World, names: NameIndex, signs: SignIndex) -> None:
        self.world, self.names, self.signs = world, names, signs

    def routes(self) -> list[Route]:
        """The routes to mount."""
        return [Route(f"/nominatim/{name}", _checked(ask), methods=_ALL) for name, ask in self._questions.items()]

    @property
    def _questions(self) -> dict[str, Callable[[Any], Awaitable[Response]]]:
        return {"search": self._search, "reverse": self._reverse}

    async def _search(self, query: Any) -> Response:
        most = min(max(1, int(_number(query, "limit", "10"))), MOST_RESULTS)
        if not query.get("q"):
            if "q" in query:
                return _json([])
            raise ValueError("Nothing to search for.")
        if not query["q"].strip():
            raise ValueError("Nothing to search for.")
        if (point := _POINT.fullmatch(query["q"])) is not None:
            place = await anyio.to_thread.run_sync(self.reverse, float(point[1]), float(point[2]), 18)
            return _json([_shaped(place, query)] if place else [])
        places = await anyio.to_thread.run_sync(self.search, query["q"].strip(), most)
        return _json([_shaped(row, query) for row in places[:most]])

    async def _reverse(self, query: Any) -> Response:
        lat, lon = _number(query, "lat"), _number(query, "lon")
        zoom = int(_number(query, "zoom", "18"))
        on_earth = abs(lat) <= 90 and abs(lon) <= 180
        place = await anyio.to_thread.run_sync(self.reverse, lat, lon, zoom) if on_earth else None
        return _json(_shaped(place, query) if place else {"error": "Unable to geocode"})

    def reverse(self, lat: float, lon: float, zoom: int = 10) -> dict[str, Any] | None:
        """What lies at a point: a street from zoom 16 on, else a town; None on the open sea.

        The country is the one whose land it is, even where the nearest town lies across the border.
        """
        iso2 = country_map().at(lat, lon)
        if zoom <= 4 and iso2 is not None:
            return _area_result(iso2, None, self.names.middle_of_country(iso2) or (lat, lon))
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
        street = streets[away.index(min(away))]
        return _road_result(street, street.street, 1.0 - min(away))

    def search(self, text: str, most: int = MOST_RESULTS) -> list[dict[str, Any]]:
        """Ranked candidates for a free text, best first; more than `most` may be found."""
        parts = [part.strip() for part in text.split(",") if fold(part)]
        if not parts:
            return []
        places = self._named(parts[0], parts[1:])
        if not places and len(parts) == 1:
            places = self._split_words(parts[0].split(), most)
        if not places and len(parts) > 1:
            # A street or shop before its town: "Rue Belmont, Lyon" or "12 Rue Belmont, Lyon, France".
            places = self._signs(parts[0], parts[1:], most)
        without = " ".join(word for word in parts[0].split() if not any(ch.isdigit() for ch in word))
        if not places and without != parts[0] and fold(without):  # a house number or postal code before the name
            places = self.search(", ".join([without, *parts[1:]]), most)
        return sorted(places, key=lambda row: -row["importance"])

    def _split_words(self, words: list[str], most: int) -> list[dict[str, Any]]:
        """A text without commas: the longest beginning that is a name, the rest is where it lies."""
        for end in range(len(words) - 1, 0, -1):
            places = self._named(" ".join(words[:end]), [" ".join(words[end:])])
            if places:
                return places
        return self._signs(" ".join(words), [], most)

    def _named(self, name: str, context: list[str]) -> list[dict[str, Any]]:
        places = []
        iso2 = self.names.country(name)
        if iso2 is not None and not context and len(fold(name)) > 2:
            middle = self.names.middle_of_country(iso2)
            if middle is not None:
                places.append(_area_result(iso2, None, middle))
        for code in self.names.divisions(name):
            if all(self._fits(word, code[:2], "") for word in context):
                middle = self.names.middle_of_division(code)
                if middle is not None:
                    places.append(_area_result(code[:2], code, middle))
        for match in self.names.cities(name)[:MOST_RESULTS]:
            city = self.world.gazetteer.city(match.row)
            if all(self._fits(word, city.country, city.admin1) for word in context):
                places.append(_city_result(city, match.is_alias))
        return places

    def _fits(self, text: str, iso2: str, admin1: str) -> bool:
        """Whether a part of an address names the country or division (postal codes say nothing and fit)."""
        key = fold(text)
        if any(ch.isdigit() for ch in key) or not key:
            return True
        return self.names.country(key) == iso2 or bool(admin1 and (key == fold(admin1) or key in fold(admin1).split()))

    def _signs(self, text: str, context: list[str], most: int) -> list[dict[str, Any]]:
        towns = {match.row for word in context[:1] for match in self.names.cities(word)[:20]}
        lands = set().union(*(self.names.areas(word) for word in context))
        signs = []
        # Without a context none is left out below, and they come in the order of their importance.
        for hit in self.signs.find(text, most=MOST_RESULTS if context else most, towns=towns, lands=lands):
            if hit.score < 0.45:
                continue
            street = hit.street
            city = street.city
            names = {fold(name) for name in (city.name, street.local_name, *city.alternate_names)}
            where = [word for word in context if fold(word) not in names]
            codes = {street.country, self.world.gazetteer.region_code(city.index)}
            if all(
                codes & self.names.areas(word) or self._fits(word, street.country, street.city.admin1) for word in where
            ):
                road = street.street if fold(street.street) == fold(hit.text) else hit.text
                signs.append(_road_result(street, road, hit.score))
        return signs


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


def _road_result(street: Street, road: str, score: float) -> dict[str, Any]:
    number = 10**8 + (street.index if isinstance(street, Place) else 10**7 + street.index)
    address = {"road": road} | _city_result(street.city, False)["address"]
    what = ("highway", "residential", "road", 26)
    return _result(number, *what, 0.05 + 0.3 * min(1.0, score), road, address, *map_point(street), 0.002)


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
    """The result; upstream shows the address by default in reverse, in search only on request."""
    with_address = query.get("addressdetails", "1" if "lat" in query else "0") == "1"
    return {name: value for name, value in row.items() if name != "address" or with_address}


def _json(value: Any, status: int = 200) -> Response:
    return Response(json.dumps(value, ensure_ascii=False), status, media_type="application/json; charset=utf-8")


def _number(query: Any, name: str, otherwise: str | None = None) -> float:
    text = query.get(name, otherwise)
    if text is None:
        raise ValueError(f"Parameter '{name}' missing.")
    try:
        number = float(text) if name in ("lat", "lon") else int(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"Parameter '{name}' must be a number.")
    return number


def _checked(ask: Callable[[Any], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint with the refusals of the real server."""

    async def endpoint(request: Request) -> Response:
        if request.method != "GET":
            return JSONResponse({"title": "405 Method Not Allowed"}, 405)
        if request.query_params.get("format", "jsonv2") not in _FORMATS:
            known = ", ".join(_FORMATS)
            return Response(f"ERROR 400: Parameter 'format' must be one of: {known}", 400, media_type="text/plain")
        try:
            return await ask(request.query_params)
        except ValueError as error:
            return _json({"error": {"code": 400, "message": str(error)}}, 400)

    return endpoint


class Google:
    """Geocoding over the lookup of Nominatim."""

    def __init__(self, lookup: Nominatim) -> None:
        self.lookup = lookup

    def routes(self) -> list[Route]:
        """The routes to mount."""
        return [Route("/google/maps/api/geocode/json", self._geocode)]

    async def _geocode(self, request: Request) -> Response:
        query = request.query_params
        refused = _google_refusal(query.get("key", ""))
        if refused is not None:
            return _google_json("REQUEST_DENIED", [], refused)
        if not query.get("address", "").strip():
            missing = "Invalid request. Missing the 'address', 'components', 'latlng' or 'place_id' parameter."
            return _google_json("INVALID_REQUEST", [], missing)
        rows = await anyio.to_thread.run_sync(self.lookup.search, query["address"])
        results = [_google_result(row) for row in rows[:_GOOGLE_MOST]]
        return _google_json("OK" if results else "ZERO_RESULTS", results)


def _google_refusal(key: str) -> str | None:
    if not key:
        return _GOOGLE_NO_KEY
    return None if key.startswith("AIza") else "The provided API key is invalid. "


def _google_result(row: dict[str, Any]) -> dict[str, Any]:
    components = []
    for level, name in row["address"].items():
        if level == "country_code":
            continue
        short = row["address"]["country_code"].upper() if level == "country" else name
        components.append({"long_name": name, "short_name": short, "types": _GOOGLE_KINDS[level]})
    south, north, west, east = (float(edge) for edge in row["boundingbox"])
    box = {"northeast": {"lat": north, "lng": east}, "southwest": {"lat": south, "lng": west}}
    return {
        "address_components": components,
        "formatted_address": row["display_name"],
        "geometry": {
            "bounds": box,
            "location": {"lat": float(row["lat"]), "lng": float(row["lon"])},
            "location_type": "GEOMETRIC_CENTER" if row["addresstype"] == "road" else "APPROXIMATE",
            "viewport": box,
        },
        "place_id": _place_id(row["place_id"]),
        "types": _GOOGLE_KINDS[row["addresstype"]],
    }


def _place_id(number: int) -> str:
    raw = key_of("place id", number).to_bytes(16, "big") + number.to_bytes(4, "big")
    return "ChIJ" + base64.urlsafe_b64encode(raw).decode().rstrip("=")[:23]


def _google_json(status: str, results: list[dict[str, Any]], message: str | None = None) -> Response:
    body: dict[str, Any] = {"error_message": message} if message else {}
    return Response(
        json.dumps(body | {"results": results, "status": status}, ensure_ascii=False),
        media_type="application/json; charset=UTF-8",
    )


class OpenCage:
    """Geocoding over the lookup of Nominatim."""

    def __init__(self, lookup: Nominatim) -> None:
        self.lookup = lookup
        self._day, self._used = 0, 0

    def routes(self) -> list[Route]:
        """The routes to mount."""
        return [Route("/opencage/geocode/v1/json", self._geocode)]

    async def _geocode(self, request: Request) -> Response:
        query = request.query_params
        key = query.get("key", "")
        if len(key) not in (30, 32) or not key.isalnum():
            return self._answer(401, "missing API key" if not key else "invalid API key", [])
        text = query.get("q", "").strip()
        if len(text) < 2:
            return self._answer(400, "query too short", [])
        rows = await anyio.to_thread.run_sync(self.lookup.search, text)
        limit = query.get("limit", "10")
        rows = rows[: min(100, int(limit)) if limit.isdigit() and int(limit) > 0 else 10]
        return self._answer(200, "OK", [_opencage_result(row) for row in rows])

    def _answer(self, status: int, message: str, results: list[dict[str, Any]]) -> Response:
        now = time.time()
        if int(now // 86_400) != self._day:
            self._day, self._used = int(now // 86_400), 0
        self._used += status == 200
        left = max(0, RATE_LIMIT - self._used)
        moment = datetime.fromtimestamp(now, UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        body: dict[str, Any] = {
            "documentation": "https://opencagedata.com/api",
            "licenses": [{"name": "see attribution guide", "url": "https://opencagedata.com/credits"}],
        }
        if status == 200:
            body["rate"] = {"limit": RATE_LIMIT, "remaining": left, "reset": (self._day + 1) * 86_400}
        body |= {
            "results": results,
            "status": {"code": status, "message": message},
            "stay_informed": {"blog": "https://blog.opencagedata.com"},
            "thanks": "For using an OpenCage API",
            "timestamp": {"created_http": moment, "created_unix": int(now)},
            "total_results": len(results),
        }
        text = json.dumps(body, ensure_ascii=False)
        return Response(text, status, media_type="application/json; charset=utf-8")


def _opencage_result(row: dict[str, Any]) -> dict[str, Any]:
    address = row["address"]
    facts = countries()[address["country_code"].upper()]
    south, north, west, east = (float(edge) for edge in row["boundingbox"])
    components = {
        "ISO_3166-1_alpha-2": facts.iso2,
        "_category": "road" if row["addresstype"] == "road" else "place",
        "_normalized_city": next((address[level] for level in ("city", "town", "village") if level in address), None),
        "_type": row["addresstype"],
        "continent": CONTINENTS.get(facts.continent, facts.continent),
        **address,
    }
    return {
        "bounds": {"northeast": {"lat": north, "lng": east}, "southwest": {"lat": south, "lng": west}},
        "components": {name: value for name, value in components.items() if value is not None},
        "confidence": _confidence(south, north, west, east),
        "formatted": row["display_name"],
        "geometry": {"lat": float(row["lat"]), "lng": float(row["lon"])},
    }


def _confidence(south: float, north: float, west: float, east: float) -> int:
    """10 for a box under a quarter kilometre across, down to 1, as the service documents it."""
    across_km = 111.195 * math.hypot(north - south, (east - west) * math.cos(math.radians((south + north) / 2)))
    return next((level for limit, level in _CONFIDENCE_KM if across_km < limit), 1)
