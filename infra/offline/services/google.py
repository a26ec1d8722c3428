"""Google's Geocoding API: address to places and point to places, in its JSON; trouble comes as a status in a 200."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from infra.offline.seeded_random import key_of
from infra.offline.services.nominatim import Nominatim

KEY = "AIza-offline-world"  # public: it opens only this world
_NO_KEY = (
    "You must use an API key to authenticate each request to Google Maps Platform APIs. For additional information, "
    "please refer to http://g.co/dev/maps-no-account"
)
_KINDS = {
    "country": ["country", "political"],
    "state": ["administrative_area_level_1", "political"],
    "city": ["locality", "political"],
    "town": ["locality", "political"],
    "village": ["locality", "political"],
    "road": ["route"],
}
_MOST = 5


class Google:
    """Geocoding over the lookup of Nominatim."""

    def __init__(self, lookup: Nominatim) -> None:
        self.lookup = lookup

    def routes(self) -> list[Route]:
        """The routes to mount."""
        return [Route("/google/maps/api/geocode/json", self._geocode)]

    async def _geocode(self, request: Request) -> Response:
        query = request.query_params
        refused = _refusal(query.get("key", ""))
        if refused is not None:
            return _json("REQUEST_DENIED", [], refused)
        if "latlng" in query:
            point = _point(query["latlng"])
            if point is None:
                return _json("INVALID_REQUEST", [], "Invalid request. Invalid 'latlng' parameter.")
            rows = await anyio.to_thread.run_sync(self._levels, *point)
        elif query.get("address", "").strip():
            rows = (await anyio.to_thread.run_sync(self.lookup.search, query["address"]))[:_MOST]
            region = query.get("region", "").lower()
            # A region only biases: what lies there comes first, the rest is still answered.
            rows.sort(key=lambda row: bool(region) and row["address"].get("country_code") != region)
        else:
            return _json(
                "INVALID_REQUEST",
                [],
                "Invalid request. Missing the 'address', 'components', 'latlng' or 'place_id' parameter.",
            )
        results = [_result(row) for row in rows]
        return _json("OK" if results else "ZERO_RESULTS", results)

    def _levels(self, lat: float, lon: float) -> list[dict[str, Any]]:
        """What lies at a point, from the street to the country."""
        rows = [row for zoom in (18, 10, 4) if (row := self.lookup.reverse(lat, lon, zoom)) is not None]
        return [row for k, row in enumerate(rows) if row["place_id"] not in {other["place_id"] for other in rows[:k]}]


def _refusal(key: str) -> str | None:
    if not key:
        return _NO_KEY
    return None if key.startswith("AIza") else "The provided API key is invalid. "


def _point(text: str) -> tuple[float, float] | None:
    try:
        lat, lon = (float(part) for part in text.split(","))
    except ValueError:
        return None
    if not (math.isfinite(lat) and math.isfinite(lon) and abs(lat) <= 90):
        return None
    return lat, (lon + 180.0) % 360.0 - 180.0


def _result(row: dict[str, Any]) -> dict[str, Any]:
    components = []
    for level, name in row["address"].items():
        if level == "country_code":
            continue
        short = row["address"]["country_code"].upper() if level == "country" else name
        components.append({"long_name": name, "short_name": short, "types": _KINDS[level]})
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
        "types": _KINDS[row["addresstype"]],
    }


def _place_id(number: int) -> str:
    raw = key_of("place id", number).to_bytes(16, "big") + number.to_bytes(4, "big")
    return "ChIJ" + base64.urlsafe_b64encode(raw).decode().rstrip("=")[:23]


def _json(status: str, results: list[dict[str, Any]], message: str | None = None) -> Response:
    body: dict[str, Any] = {"error_message": message} if message else {}
    return Response(
        json.dumps(body | {"results": results, "status": status}, ensure_ascii=False),
        media_type="application/json; charset=UTF-8",
    )
