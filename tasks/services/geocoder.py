"""Names to coordinates and back, over the Nominatim protocol."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from tasks.services.calls import server_of
from tasks.services.http import Answer, Connection, Http
from tasks.services.response_store import Responses, ask_once, digest_key

# Which address key means what differs by country; the first one present wins.
_CITY_KEYS = ("city", "town", "village", "municipality", "hamlet", "suburb", "county")
_REGION_KEYS = ("state", "province", "region", "state_district", "county")


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


class Geocoder:
    """Search by name and by point."""

    def __init__(self, connection: Connection, **http_options: Any) -> None:
        headers = {"Authorization": f"Bearer {connection.key.get_secret_value()}"} if connection.key else {}
        self._http = Http(connection, headers={"Accept-Language": "en", **headers}, **http_options)

    async def search(self, query: str, limit: int = 5) -> list[GeocodeCandidate]:
        """The places a name may mean, best first; none is an empty list."""
        params = {"q": query, "format": "jsonv2", "addressdetails": 1, "limit": limit}
        value, answer = await self._http.request_json("GET", "/search", params=params)
        if not isinstance(value, list):
            raise self._http.bad_response("not a list of places", answer)
        return [self._candidate(row, answer) for row in value]

    async def reverse(self, lat: float, lon: float, zoom: int = 10) -> Address | None:
        """The address of a point at city level, or None where there is none (the sea)."""
        params = {"lat": f"{lat:.7f}", "lon": f"{lon:.7f}", "format": "jsonv2", "addressdetails": 1, "zoom": zoom}
        value, answer = await self._http.request_json("GET", "/reverse", params=params)
        if not isinstance(value, dict):
            raise self._http.bad_response("not an object", answer)
        if "error" in value:
            # "Unable to geocode" comes with status 200; an outage would have another status
            return None
        return self._address(value, answer)

    async def close(self) -> None:
        await self._http.close()

    def _address(self, row: dict[str, Any], answer: Answer) -> Address:
        parts = row.get("address")
        if not isinstance(parts, dict):
            raise self._http.bad_response("a place without address details", answer)
        return Address(
            country=str(parts.get("country") or ""),
            country_code=str(parts.get("country_code") or "").upper(),
            region=_first(parts, _REGION_KEYS),
            city=_first(parts, _CITY_KEYS),
        )

    def _candidate(self, row: Any, answer: Answer) -> GeocodeCandidate:
        if not isinstance(row, dict):
            raise self._http.bad_response("a place that is not an object", answer)
        try:
            lat, lon = float(row["lat"]), float(row["lon"])
        except (KeyError, TypeError, ValueError):
            raise self._http.bad_response("a place without lat and lon", answer) from None
        if not (math.isfinite(lat) and math.isfinite(lon) and abs(lat) <= 90 and abs(lon) <= 180):
            raise self._http.bad_response("a place off the Earth", answer)
        address = self._address(row, answer)
        display = str(row.get("display_name") or "")
        importance = row.get("importance")
        return GeocodeCandidate(
            lat=lat,
            lon=lon,
            name=str(row.get("name") or display.partition(",")[0]),
            display_name=display,
            country=address.country,
            country_code=address.country_code,
            region=address.region,
            city=address.city,
            importance=float(importance) if isinstance(importance, int | float) else 0.0,
        )


class RecallingGeocoder(Geocoder):
    """The geocoder, but for what it was asked before on a lake: after a kill nothing is asked twice."""

    def __init__(self, connection: Connection, store: Responses, **http_options: Any) -> None:
        super().__init__(connection, **http_options)
        self._store, self._server = store, server_of(connection.endpoint.base_url)

    async def search(self, query: str, limit: int = 5) -> list[GeocodeCandidate]:
        async def ask() -> bytes:
            found = await super(RecallingGeocoder, self).search(query, limit)
            return json.dumps([asdict(one) for one in found]).encode()

        kept = await ask_once(self._store, "geocoder", digest_key(self._server, "search", query, limit), ask)
        return [GeocodeCandidate(**one) for one in json.loads(kept)]

    async def reverse(self, lat: float, lon: float, zoom: int = 10) -> Address | None:
        async def ask() -> bytes:
            found = await super(RecallingGeocoder, self).reverse(lat, lon, zoom)
            return json.dumps(found and asdict(found)).encode()

        kept = await ask_once(self._store, "geocoder", digest_key(self._server, "reverse", lat, lon, zoom), ask)
        found = json.loads(kept)
        return found and Address(**found)


def _first(parts: dict[str, Any], keys: tuple[str, ...]) -> str:
    return next((str(parts[key]) for key in keys if parts.get(key)), "")
