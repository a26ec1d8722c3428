"""OpenCage's geocoding API: text or `lat,lon` to ranked places, with its confidence and its quota."""

from __future__ import annotations

import json
import math
import time
from datetime import UTC, datetime
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from infra.offline.facts import countries
from infra.offline.services.nominatim import Nominatim

KEY = "0ff11e0ff11e0ff11e0ff11e0ff11e00"  # public: it opens only this world
# Keys the real service publishes for testing how a client takes a refusal.
TEST_KEYS = {
    "4372eff77b8343cebfc843eb4da4ddc4": (402, "quota exceeded"),
    "2e10e5e828262eb243ec0b54681d699a": (403, "suspended"),
    "6c79ee8e1ca44ad58ad1fc493ba9542f": (403, "IP address rejected"),
    "d6d0f0065f4348a4bdfe4587ba02714b": (429, "too many requests"),
}
RATE_LIMIT = 2500
_CONFIDENCE_KM = ((0.25, 10), (0.5, 9), (1, 8), (5, 7), (7.5, 6), (10, 5), (15, 4), (20, 3), (25, 2))
_CONTINENTS = {
    "AF": "Africa", "AS": "Asia", "EU": "Europe", "NA": "North America", "OC": "Oceania", "SA": "South America",
    "AN": "Antarctica",
}  # fmt: skip


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
        if key in TEST_KEYS:
            return self._answer(*TEST_KEYS[key], [])
        if len(key) not in (30, 32) or not key.isalnum():
            return self._answer(401, "missing API key" if not key else "invalid API key", [])
        text = query.get("q", "").strip()
        if len(text) < 2:
            return self._answer(400, "query too short", [])
        point = _point(text)
        if point is not None and not point:
            return self._answer(400, "invalid coordinates", [])
        if point:
            row = await anyio.to_thread.run_sync(self.lookup.reverse, point[0], point[1], 18)
            rows = [] if row is None else [row]
        else:
            rows = await anyio.to_thread.run_sync(self.lookup.search, text)
        wanted = {code.strip().lower() for code in query.get("countrycode", "").split(",") if code.strip()}
        rows = [row for row in rows if not wanted or row["address"].get("country_code") in wanted]
        limit = query.get("limit", "10")
        rows = rows[: min(100, int(limit)) if limit.isdigit() and int(limit) > 0 else 10]
        return self._answer(200, "OK", [_result(row, query.get("no_annotations") == "1") for row in rows])

    def _answer(self, status: int, message: str, results: list[dict[str, Any]]) -> Response:
        now = time.time()
        if int(now // 86_400) != self._day:
            self._day, self._used = int(now // 86_400), 0
        self._used += status == 200
        left = 0 if status == 402 else max(0, RATE_LIMIT - self._used)
        moment = datetime.fromtimestamp(now, UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        body: dict[str, Any] = {
            "documentation": "https://opencagedata.com/api",
            "licenses": [{"name": "see attribution guide", "url": "https://opencagedata.com/credits"}],
        }
        if status in (200, 402):
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


def _point(text: str) -> tuple[float, float] | tuple[()] | None:
    """(lat, lon) of a query that is a point, () when it is one off the Earth, None when it is a name."""
    try:
        lat, lon = (float(part) for part in text.split(","))
    except ValueError:
        return None
    return (lat, lon) if math.isfinite(lat + lon) and abs(lat) <= 90 and abs(lon) <= 180 else ()


def _result(row: dict[str, Any], bare: bool) -> dict[str, Any]:
    address = row["address"]
    facts = countries()[address["country_code"].upper()]
    south, north, west, east = (float(edge) for edge in row["boundingbox"])
    components = {
        "ISO_3166-1_alpha-2": facts.iso2,
        "_category": "road" if row["addresstype"] == "road" else "place",
        "_normalized_city": next((address[level] for level in ("city", "town", "village") if level in address), None),
        "_type": row["addresstype"],
        "continent": _CONTINENTS.get(facts.continent, facts.continent),
        **address,
    }
    shown: dict[str, Any] = {
        "bounds": {"northeast": {"lat": north, "lng": east}, "southwest": {"lat": south, "lng": west}},
        "components": {name: value for name, value in components.items() if value is not None},
        "confidence": _confidence(south, north, west, east),
        "formatted": row["display_name"],
        "geometry": {"lat": float(row["lat"]), "lng": float(row["lon"])},
    }
    if not bare:
        shown["annotations"] = {
            "callingcode": int(facts.phone_prefix.lstrip("+").split("-")[0]) if facts.phone_prefix else None,
            "roadinfo": {"drive_on": facts.drives_on},
        }
    return shown


def _confidence(south: float, north: float, west: float, east: float) -> int:
    """10 for a box under a quarter kilometre across, down to 1, as the service documents it."""
    across_km = 111.195 * math.hypot(north - south, (east - west) * math.cos(math.radians((south + north) / 2)))
    return next((level for limit, level in _CONFIDENCE_KM if across_km < limit), 1)
