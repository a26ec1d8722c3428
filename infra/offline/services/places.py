"""Google's Places (New) and Static Maps over the points of the offline world's map.

Requests name the fields they want (`X-Goog-FieldMask`); what an answer does not have is left out, nothing found is an
empty object, and trouble is `{"error": {code, message, status}}` with its HTTP status. Points are WGS 84.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from infra.offline.data import read_table
from infra.offline.facts import countries
from infra.offline.maps.view import HIGHEST_LAT, View
from infra.offline.services.maps import HIGHEST_ZOOM, STYLES, Maps, Poi

KEY_START = "AIza"
MOST, MOST_SUGGESTED, LARGEST_PX = 20, 5, 640
FIELDS = (
    *("id", "name", "displayName", "primaryTypeDisplayName", "types", "formattedAddress", "location"),
    "addressComponents",
)
# (type, its name) of what the map calls a kind
TYPES = {row["kind"]: (row["google_type"], row["google_title"]) for row in read_table("place_kinds.csv")}
_STATUS = {400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}
_NO_KEY = "Method doesn't allow unregistered callers (callers without established identity)."
_NO_MASK = "FieldMask is a required parameter. See https://cloud.google.com/apis/docs/system-parameters"


class Places:
    """Places over a map's points."""

    def __init__(self, maps: Maps) -> None:
        self.maps, self.table = maps, maps.table

    def routes(self) -> list[Route]:
        """The routes to mount."""
        return [
            Route("/places/v1/places:searchText", self._keyed(self._search), methods=["POST"]),
            Route("/places/v1/places:autocomplete", self._keyed(self._complete), methods=["POST"]),
            Route("/places/v1/places/{place_id}", self._keyed(self._detail)),
            Route("/places/maps/api/staticmap", self._static),
        ]

    def _keyed(self, answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            key = request.headers.get("x-goog-api-key") or request.query_params.get("key", "")
            if not key:
                return _error(403, _NO_KEY)
            if not key.startswith(KEY_START):
                refused = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
                return _error(400, "API key not valid. Please pass a valid API key.", [refused])
            try:
                return await answer(request)
            except ValueError as error:
                return _error(400, str(error))

        return endpoint

    async def _search(self, request: Request) -> Response:
        fields = _mask(request, "places.")
        body = await _body(request)
        words, most = body.get("textQuery"), body.get("pageSize", MOST)
        if not isinstance(words, str) or not words.strip():
            raise ValueError("Empty text_query.")
        if not isinstance(most, int) or not 0 <= most <= MOST:
            raise ValueError(f"Invalid page_size: it must be between 0 and {MOST}.")
        name, _, where = words.partition(",")
        pois = await anyio.to_thread.run_sync(self.table.search, name.strip(), where.strip(), most or MOST)
        return _json({"places": [_place(poi, fields) for poi in pois]} if pois else {})

    async def _complete(self, request: Request) -> Response:
        begun = (await _body(request)).get("input")
        if not isinstance(begun, str) or not begun.strip():
            raise ValueError("Empty input.")
        pois = await anyio.to_thread.run_sync(self.table.complete, begun, "", MOST_SUGGESTED)
        suggestions = [
            {
                "placePrediction": {
                    "place": f"places/{place_id(poi)}",
                    "placeId": place_id(poi),
                    "text": {"text": ", ".join((poi.name, *_district(poi)))},
                    "structuredFormat": {
                        "mainText": {"text": poi.name},
                        "secondaryText": {"text": ", ".join(_district(poi))},
                    },
                    "types": [TYPES[poi.kind][0]],
                }
            }
            for poi in pois
        ]
        return _json({"suggestions": suggestions} if suggestions else {})

    async def _detail(self, request: Request) -> Response:
        fields = _mask(request, "")
        place_id = request.path_params["place_id"]
        if not place_id.startswith("ChIJ"):
            raise ValueError(f"Not a valid Place ID: {place_id[:80]}")
        poi = await anyio.to_thread.run_sync(self.table.get, place_id.removeprefix("ChIJ"))
        if poi is None:
            return _error(404, "The Place ID is no longer valid. Please refresh cached Place IDs.")
        return _json(_place(poi, fields))

    async def _static(self, request: Request) -> Response:
        query = request.query_params
        if not query.get("key", "").startswith(KEY_START):
            return PlainTextResponse(
                "The Google Maps Platform server rejected your request. The provided API key is invalid.", 403
            )
        style = query.get("maptype", "roadmap")
        try:
            lat, lon = (float(part) for part in query["center"].split(","))
            zoom = int(query["zoom"])
            width, height = (int(part) for part in query["size"].split("x"))
        except (KeyError, ValueError):
            return _refused()
        fits = 1 <= width <= LARGEST_PX and 1 <= height <= LARGEST_PX and 1 <= zoom <= HIGHEST_ZOOM
        if not (fits and abs(lat) <= HIGHEST_LAT and abs(lon) <= 180 and style in STYLES):
            return _refused()
        return await self.maps.show(View.around(lat, lon, zoom, width, height), style)


def place_id(poi: Poi) -> str:
    """The id that Google's map has of a point."""
    return f"ChIJ{poi.poi_id}"


def _district(poi: Poi) -> list[str]:
    return [part for part in (poi.city.name, poi.city.admin1, countries()[poi.city.country].name) if part]


def _place(poi: Poi, fields: Sequence[str]) -> dict[str, Any]:
    kind, title = TYPES[poi.kind]
    levels = {
        "locality": (poi.city.name, poi.city.name),
        "administrative_area_level_1": (poi.city.admin1, poi.city.admin1),
        "country": (countries()[poi.city.country].name, poi.city.country),
    }
    every: dict[str, Any] = {
        "name": f"places/{place_id(poi)}",
        "id": place_id(poi),
        "displayName": {"text": poi.name, "languageCode": "en"},
        "types": [kind, "point_of_interest", "establishment"] if title else [kind, "political"],
        "formattedAddress": ", ".join(part for part in (poi.address, *_district(poi)) if part),
        "location": {"latitude": poi.lat, "longitude": poi.lon},
        "addressComponents": [
            {"longText": name, "shortText": short, "types": [level, "political"], "languageCode": "en"}
            for level, (name, short) in levels.items()
            if name
        ],
    }
    if title:
        every["primaryTypeDisplayName"] = {"text": title, "languageCode": "en"}
    return {name: value for name, value in every.items() if name in fields}


def _mask(request: Request, head: str) -> list[str]:
    mask = request.headers.get("x-goog-fieldmask") or request.query_params.get("fields", "")
    if not mask:
        raise ValueError(_NO_MASK)
    fields = [part.strip().removeprefix(head) for part in mask.split(",")]
    if fields == ["*"]:
        return list(FIELDS)
    unknown = [part for part in fields if part not in FIELDS]
    if unknown:
        raise ValueError(f"Error expanding 'fields' parameter. Cannot find matching fields for path '{unknown[0]}'.")
    return fields


async def _body(request: Request) -> dict[str, Any]:
    try:
        value = json.loads(await request.body())
    except ValueError:
        raise ValueError("Invalid JSON payload received.") from None
    if not isinstance(value, dict):
        raise ValueError("Invalid JSON payload received. The root must be an object.")
    return value


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(body, ensure_ascii=False), status, media_type="application/json; charset=UTF-8")


def _error(code: int, message: str, details: Sequence[Any] = ()) -> Response:
    error: dict[str, Any] = {"code": code, "message": message, "status": _STATUS[code]}
    return _json({"error": error | ({"details": list(details)} if details else {})}, code)


def _refused() -> Response:
    return PlainTextResponse("The Google Maps Platform server rejected your request. Invalid request.", 400)
