"""Names to coordinates and back: by the protocols of Nominatim, Photon, Google and OpenCage, or by the packaged
gazetteer, which asks no service. All give the same (SpotAgent A.2)."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from tasks.geo.geocode import Place, find_places
from tasks.geo.labels import labels_of
from tasks.geo.names import country_title, region_names_by_code
from tasks.services.calls import server_of
from tasks.services.errors import HttpResponse, Kind, ServiceError, safe_url
from tasks.services.http import ServiceClient, key_header
from tasks.services.response_store import Responses, ask_once, digest_key
from tasks.services.transport import Connection

# Which address key means what differs by country; the first one present wins.
_CITY_KEYS = ("city", "town", "village", "municipality", "hamlet", "borough", "suburb")
_REGION_KEYS = ("state", "province", "region", "state_district")
_REGION_CODES = ("ISO3166-2-lvl4", "ISO3166-2-lvl3", "ISO3166-2-lvl5", "ISO3166-2-lvl6")  # of city states: no state
# Google tells trouble as a status in a 200; every other one is an outage.
_GOOGLE_KINDS: dict[str, Kind] = {
    "REQUEST_DENIED": "auth",
    "INVALID_REQUEST": "rejected",
    "OVER_QUERY_LIMIT": "rate_limit",
    "OVER_DAILY_LIMIT": "quota",
}


@dataclass(frozen=True)
class Address:
    """The levels of an address; a level the service does not know is an empty string."""

    country: str
    country_code: str  # ISO 3166 alpha-2, upper case
    region: str
    city: str


@dataclass(frozen=True)
class GeocodeCandidate:
    """One place a name may mean, best first in a list."""

    lat: float
    lon: float
    name: str
    display_name: str
    country: str
    country_code: str
    region: str
    city: str
    importance: float


class Geocoder(ServiceClient):
    """Search by name and by point."""

    def __init__(self, connection: Connection, **http_options: Any) -> None:
        super().__init__(connection, {"Accept-Language": "en", **key_header(connection)}, **http_options)

    async def search(self, query: str, limit: int = 5) -> list[GeocodeCandidate]:
        """The places a name may mean, best first; none is an empty list."""
        params = {"q": query, "format": "jsonv2", "addressdetails": 1, "limit": limit}
        value, response = await self._http.request_json("GET", "/search", params=params)
        if not isinstance(value, list):
            raise self._http.bad_response("not a list of places", response)
        return [self._candidate(row, response) for row in value]

    async def reverse(self, lat: float, lon: float, zoom: int = 18) -> Address | None:
        """The address of a point, or None where there is none (the sea).

        At zoom 10, a city's own level, Nominatim names boroughs and counties; the address of a building names the town.
        """
        params = {"lat": f"{lat:.7f}", "lon": f"{lon:.7f}", "format": "jsonv2", "addressdetails": 1, "zoom": zoom}
        value, response = await self._http.request_json("GET", "/reverse", params=params)
        if not isinstance(value, dict):
            raise self._http.bad_response("not an object", response)
        if "error" in value:
            # "Unable to geocode" comes with status 200; an outage would have another status
            return None
        return self._address(value, response)

    def _address(self, row: dict[str, Any], response: HttpResponse) -> Address:
        parts = row.get("address")
        if not isinstance(parts, dict):
            raise self._http.bad_response("a place without address details", response)
        return Address(
            country=str(parts.get("country") or ""),
            country_code=str(parts.get("country_code") or "").upper(),
            region=_first(parts, _REGION_KEYS) or _region_by_code(parts) or str(parts.get("county") or ""),
            city=_first(parts, _CITY_KEYS) or str(parts.get("county") or ""),
        )

    def _candidate(self, row: Any, response: HttpResponse) -> GeocodeCandidate:
        if not isinstance(row, dict):
            raise self._http.bad_response("a place that is not an object", response)
        point = _point(row, "lon")
        if point is None:
            raise self._http.bad_response("a place without a lat and lon on Earth", response)
        display = str(row.get("display_name") or "")
        importance = row.get("importance")
        return GeocodeCandidate(
            *point,
            name=str(row.get("name") or _house(row) or display.partition(",")[0]),
            display_name=display,
            importance=float(importance) if isinstance(importance, int | float) else 0.0,
            **asdict(self._address(row, response)),
        )


class GazetteerGeocoder:
    """The packaged table of places and outlines in place of a service."""

    async def search(self, query: str, limit: int = 5) -> list[GeocodeCandidate]:
        """The places that an address may mean, best first; none is an empty list."""
        return [_of_gazetteer(place) for place in find_places(query, limit)]

    async def reverse(self, lat: float, lon: float, zoom: int = 18) -> Address | None:
        """The address of a point, or None where there is none (the sea)."""
        row = labels_of([lat], [lon]).row(0, named=True)
        if row["country_code"] is None:
            return None
        return Address(row["country"], row["country_code"], row["region"] or "", row["city"] or "")

    async def close(self) -> None:
        """Nothing is open."""


def _of_gazetteer(place: Place) -> GeocodeCandidate:
    country = country_title(place.country)
    city = place.name if place.is_town else ""
    shown = ", ".join(dict.fromkeys(name for name in (place.name, place.region, country) if name))
    return GeocodeCandidate(
        place.lat, place.lon, place.name, shown, country, place.country, place.region, city, place.weight
    )


class RecallingGeocoder:
    """A geocoder, but for what it was queried before on a lake: after a kill nothing is queried twice."""

    def __init__(self, geocoder: "AnyGeocoder", store: Responses, server: str) -> None:
        self._geocoder, self._store, self._server = geocoder, store, server

    async def search(self, query: str, limit: int = 5) -> list[GeocodeCandidate]:
        """The places a name may mean, best first; none is an empty list."""

        async def ask() -> bytes:
            return json.dumps([asdict(candidate) for candidate in await self._geocoder.search(query, limit)]).encode()

        kept = await ask_once(self._store, "geocoder", digest_key(self._server, "search", query, limit), ask)
        return [GeocodeCandidate(**entry) for entry in json.loads(kept)]

    async def reverse(self, lat: float, lon: float, zoom: int = 18) -> Address | None:
        """The address of a point, or None where there is none."""

        async def ask() -> bytes:
            address = await self._geocoder.reverse(lat, lon, zoom)
            return json.dumps(address and asdict(address)).encode()

        kept = await ask_once(self._store, "geocoder", digest_key(self._server, "reverse", lat, lon, zoom), ask)
        address = json.loads(kept)
        return address and Address(**address)


def _first(parts: dict[str, Any], keys: tuple[str, ...]) -> str:
    return next((str(parts[key]) for key in keys if parts.get(key)), "")


def _region_by_code(parts: dict[str, Any]) -> str:
    codes = (str(parts.get(key) or "") for key in _REGION_CODES)
    return next((name for code in codes if (name := region_names_by_code().get(code))), "")


def _house(row: dict[str, Any]) -> str:
    """Street and number of a house, which has no name."""
    parts = row.get("address")
    street = _first(parts, ("road", "pedestrian", "square", "place")) if isinstance(parts, dict) else ""
    number = str(parts.get("house_number") or "") if isinstance(parts, dict) else ""
    return f"{street} {number}" if street and number else ""


class GoogleGeocoder(ServiceClient):
    """Google's Geocoding API."""

    async def search(self, query: str, limit: int = 5) -> list[GeocodeCandidate]:
        """The places a name may mean, best first; none is an empty list."""
        return await self._asked({"address": query}, limit)

    async def _asked(self, question: dict[str, str], limit: int) -> list[GeocodeCandidate]:
        params = {**question, "language": "en", "key": "".join(self._http.secrets)}
        value, response = await self._http.request_json("GET", "/maps/api/geocode/json", params=params)
        status = str(value.get("status")) if isinstance(value, dict) else ""
        if status == "ZERO_RESULTS":
            return []
        if status != "OK" or not isinstance(value.get("results"), list):
            kind = _GOOGLE_KINDS.get(status, "outage" if status else "bad_response")
            raise ServiceError(self._http.service, kind, f"{status[:40]}: {safe_url(response.url)}", status=200)
        candidates = [self._candidate(row, place) for place, row in enumerate(value["results"][:limit])]
        return [candidate for candidate in candidates if candidate is not None]

    async def reverse(self, lat: float, lon: float, zoom: int = 18) -> Address | None:
        """The address of a point, or None where there is none (the sea)."""
        return _address_of(await self._asked({"latlng": f"{lat:.7f},{lon:.7f}"}, 1))

    def _candidate(self, row: Any, place: int) -> GeocodeCandidate | None:
        geometry = row.get("geometry") if isinstance(row, dict) else None
        point = _point(geometry.get("location") if isinstance(geometry, dict) else None)
        if point is None:
            return None
        parts: dict[str, str] = {}
        code = ""
        for part in row.get("address_components") or ():
            for kind in part.get("types") or ():
                parts.setdefault(str(kind), str(part.get("long_name") or ""))
                code = str(part.get("short_name") or "") if kind == "country" else code
        display = str(row.get("formatted_address") or "")
        city = parts.get("locality") or parts.get("postal_town") or parts.get("administrative_area_level_2", "")
        region = parts.get("administrative_area_level_1", "")
        names = (display.partition(",")[0], display, parts.get("country", ""), code.upper(), region, city)
        return GeocodeCandidate(*point, *names, 1.0 / (place + 1))


class OpenCageGeocoder(ServiceClient):
    """OpenCage's geocoding API."""

    async def search(self, query: str, limit: int = 5) -> list[GeocodeCandidate]:
        """The places a name may mean, best first; none is an empty list."""
        params = {"q": query, "key": "".join(self._http.secrets), "limit": limit, "language": "en", "no_annotations": 1}
        value, response = await self._http.request_json("GET", "/geocode/v1/json", params=params)
        candidates = [self._candidate(row) for row in self._http.list_under(value, "results", response)]
        return [candidate for candidate in candidates if candidate is not None]

    async def reverse(self, lat: float, lon: float, zoom: int = 18) -> Address | None:
        """The address of a point, or None where there is none (the sea)."""
        return _address_of(await self.search(f"{lat:.7f},{lon:.7f}", 1))

    def _candidate(self, row: Any) -> GeocodeCandidate | None:
        point = _point(row.get("geometry") if isinstance(row, dict) else None)
        parts = row.get("components") if point is not None else None
        if point is None or not isinstance(parts, dict):
            return None
        display = str(row.get("formatted") or "")
        city = _first(parts, ("city", "town", "village", "municipality", "county"))
        region, country = str(parts.get("state") or ""), str(parts.get("country") or "")
        code = str(parts.get("ISO_3166-1_alpha-2") or parts.get("country_code") or "").upper()
        confidence = row.get("confidence")
        names = (display.partition(",")[0], display, country, code, region, city)
        return GeocodeCandidate(*point, *names, confidence / 10 if isinstance(confidence, int | float) else 0.0)


class PhotonGeocoder(ServiceClient):
    """Photon's API, as komoot serves it and anyone can."""

    async def search(self, query: str, limit: int = 5) -> list[GeocodeCandidate]:
        """The places a name may mean, best first; none is an empty list."""
        return await self._asked("/api", {"q": query, "limit": limit, "lang": "en"})

    async def reverse(self, lat: float, lon: float, zoom: int = 18) -> Address | None:
        """The address of a point, or None where there is none (the sea)."""
        return _address_of(await self._asked("/reverse", {"lat": f"{lat:.7f}", "lon": f"{lon:.7f}", "lang": "en"}))

    async def _asked(self, path: str, params: dict[str, str | int]) -> list[GeocodeCandidate]:
        value, response = await self._http.request_json("GET", path, params=params)
        rows = self._http.list_under(value, "features", response)
        candidates = [self._candidate(row, place) for place, row in enumerate(rows)]
        return [candidate for candidate in candidates if candidate is not None]

    def _candidate(self, row: Any, place: int) -> GeocodeCandidate | None:
        geometry = row.get("geometry") if isinstance(row, dict) else None
        at = geometry.get("coordinates") if isinstance(geometry, dict) else None
        point = _point({"lat": at[1], "lng": at[0]}) if isinstance(at, list) and len(at) == 2 else None
        parts = row.get("properties") if point is not None else None
        if point is None or not isinstance(parts, dict):
            return None
        is_town = parts.get("osm_key") == "place"
        name = str(parts.get("name") or "")
        city = _first(parts, ("city", "town", "village", "locality")) or (name if is_town else "")
        region, country = _first(parts, ("state", "county")), str(parts.get("country") or "")
        street = " ".join(str(parts[key]) for key in ("street", "housenumber") if parts.get(key))
        shown = ", ".join(dict.fromkeys(part for part in (name or street, city, region, country) if part))
        code = str(parts.get("countrycode") or "").upper()
        return GeocodeCandidate(*point, name or street, shown, country, code, region, city, 1.0 / (place + 1))


AnyGeocoder = Geocoder | GoogleGeocoder | OpenCageGeocoder | PhotonGeocoder | GazetteerGeocoder
_CLIENTS: dict[str, type[Geocoder | GoogleGeocoder | OpenCageGeocoder | PhotonGeocoder]] = {
    "nominatim": Geocoder,
    "google": GoogleGeocoder,
    "opencage": OpenCageGeocoder,
    "photon": PhotonGeocoder,
}


def open_geocoder(connection: Connection | None, **http_options: Any) -> AnyGeocoder:
    """The geocoder that the endpoint speaks; without one the packaged gazetteer."""
    protocol = getattr(connection.endpoint, "protocol", "nominatim") if connection else "gazetteer"
    if connection is None or protocol == "gazetteer":
        return GazetteerGeocoder()
    return _CLIENTS[protocol](connection, **http_options)


def open_recalling(connection: Connection | None, store: Responses) -> GazetteerGeocoder | RecallingGeocoder:
    """The same, with answers kept; the gazetteer's need not be."""
    geocoder = open_geocoder(connection)
    if connection is None or isinstance(geocoder, GazetteerGeocoder):
        return GazetteerGeocoder()
    return RecallingGeocoder(geocoder, store, server_of(connection.endpoint.base_url))


def _address_of(candidates: list[GeocodeCandidate]) -> Address | None:
    return (
        Address(candidates[0].country, candidates[0].country_code, candidates[0].region, candidates[0].city)
        if candidates
        else None
    )


def _point(value: Any, lon_name: str = "lng") -> tuple[float, float] | None:
    """(lat, lon) of `{"lat", "lng"}`, None for anything that is not a point on Earth."""
    try:
        lat, lon = float(value["lat"]), float(value[lon_name])
    except (KeyError, TypeError, ValueError):
        return None
    return (lat, lon) if math.isfinite(lat + lon) and abs(lat) <= 90 and abs(lon) <= 180 else None
