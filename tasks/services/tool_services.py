"""Services that only the agents' tools ask: web search of You.com, geocoding of Google and OpenCage.

They give what the clients of Tavily and Nominatim give, so a tool does not know whom it asks (SpotAgent A.2).
"""

import math
from typing import Any

from schemas.settings.services import SearchEndpoint, ToolGeocoderEndpoint
from tasks.services.errors import Kind, ServiceError, safe_url
from tasks.services.geocoder import GeocodeCandidate, Geocoder
from tasks.services.http import Connection, Http
from tasks.services.search import Search, SearchResult

# Google tells trouble as a status in a 200; every other one is an outage.
_GOOGLE_KINDS: dict[str, Kind] = {
    "REQUEST_DENIED": "auth",
    "INVALID_REQUEST": "rejected",
    "OVER_QUERY_LIMIT": "rate_limit",
    "OVER_DAILY_LIMIT": "quota",
}


def open_search(connection: Connection, **http_options: Any) -> "Search | YouSearch":
    """The web search that the endpoint speaks."""
    endpoint = connection.endpoint
    is_you = isinstance(endpoint, SearchEndpoint) and endpoint.protocol == "you"
    return YouSearch(connection, **http_options) if is_you else Search(connection, **http_options)


def open_geocoder(connection: Connection, **http_options: Any) -> "Geocoder | GoogleGeocoder | OpenCageGeocoder":
    """The geocoder that the endpoint speaks."""
    endpoint = connection.endpoint
    protocol = endpoint.protocol if isinstance(endpoint, ToolGeocoderEndpoint) else "nominatim"
    if protocol == "google":
        return GoogleGeocoder(connection, **http_options)
    return (
        OpenCageGeocoder(connection, **http_options) if protocol == "opencage" else Geocoder(connection, **http_options)
    )


class YouSearch:
    """You.com's web search."""

    def __init__(self, connection: Connection, **http_options: Any) -> None:
        headers = {"X-API-Key": connection.key.get_secret_value()} if connection.key else {}
        self._http = Http(connection, headers=headers, **http_options)

    async def search(self, query: str, max_results: int = 5) -> list[SearchResult]:
        """The pages found; none is an empty list."""
        params = {"query": query, "count": max_results}
        value, answer = await self._http.request_json("GET", "/v1/search", params=params)
        found = value.get("results") if isinstance(value, dict) else None
        rows = found.get("web") if isinstance(found, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise self._http.bad_response("no list under 'results.web'", answer)
        return [
            SearchResult(
                title=str(row.get("title") or ""),
                url=str(row.get("url") or ""),
                content=_text(row),
                score=1.0 - place / max(1, len(rows)),
            )
            for place, row in enumerate(rows)
        ]

    async def close(self) -> None:
        await self._http.close()


class GoogleGeocoder:
    """Google's Geocoding API."""

    def __init__(self, connection: Connection, **http_options: Any) -> None:
        self._key = connection.key.get_secret_value() if connection.key else ""
        self._http = Http(connection, **http_options)

    async def search(self, query: str, limit: int = 5) -> list[GeocodeCandidate]:
        """The places a name may mean, best first; none is an empty list."""
        params = {"address": query, "language": "en", "key": self._key}
        value, answer = await self._http.request_json("GET", "/maps/api/geocode/json", params=params)
        status = str(value.get("status")) if isinstance(value, dict) else ""
        if status == "ZERO_RESULTS":
            return []
        if status != "OK" or not isinstance(value.get("results"), list):
            kind = _GOOGLE_KINDS.get(status, "outage" if status else "bad_response")
            raise ServiceError("tool_geocoder", kind, f"{status[:40]}: {safe_url(answer.url)}", status=200)
        found = [self._candidate(row, place) for place, row in enumerate(value["results"][:limit])]
        return [one for one in found if one is not None]

    async def close(self) -> None:
        await self._http.close()

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


class OpenCageGeocoder:
    """OpenCage's geocoding API."""

    def __init__(self, connection: Connection, **http_options: Any) -> None:
        self._key = connection.key.get_secret_value() if connection.key else ""
        self._http = Http(connection, **http_options)

    async def search(self, query: str, limit: int = 5) -> list[GeocodeCandidate]:
        """The places a name may mean, best first; none is an empty list."""
        params = {"q": query, "key": self._key, "limit": limit, "language": "en", "no_annotations": 1}
        value, answer = await self._http.request_json("GET", "/geocode/v1/json", params=params)
        rows = value.get("results") if isinstance(value, dict) else None
        if not isinstance(rows, list):
            raise self._http.bad_response("no list under 'results'", answer)
        found = [self._candidate(row) for row in rows]
        return [one for one in found if one is not None]

    async def close(self) -> None:
        await self._http.close()

    def _candidate(self, row: Any) -> GeocodeCandidate | None:
        point = _point(row.get("geometry") if isinstance(row, dict) else None)
        parts = row.get("components") if point is not None else None
        if point is None or not isinstance(parts, dict):
            return None
        display = str(row.get("formatted") or "")
        keys = ("city", "town", "village", "municipality", "county")
        city = next((str(parts[key]) for key in keys if parts.get(key)), "")
        region, country = str(parts.get("state") or ""), str(parts.get("country") or "")
        code = str(parts.get("ISO_3166-1_alpha-2") or parts.get("country_code") or "").upper()
        confidence = row.get("confidence")
        names = (display.partition(",")[0], display, country, code, region, city)
        return GeocodeCandidate(*point, *names, confidence / 10 if isinstance(confidence, int | float) else 0.0)


def _text(row: dict[str, Any]) -> str:
    snippets = row.get("snippets")
    if isinstance(snippets, list) and snippets:
        return " ".join(str(part) for part in snippets)
    return str(row.get("description") or "")


def _point(value: Any) -> tuple[float, float] | None:
    """(lat, lon) of `{"lat", "lng"}`, None for what is no point on Earth."""
    try:
        lat, lon = float(value["lat"]), float(value["lng"])
    except (KeyError, TypeError, ValueError):
        return None
    return (lat, lon) if math.isfinite(lat + lon) and abs(lat) <= 90 and abs(lon) <= 180 else None
