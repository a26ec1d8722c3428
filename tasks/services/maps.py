"""Points of interest and pictures of the ground, from AMap, Google or both (Thinking with Map, 3.1).

Points are WGS 84 on our side of both clients. AMap's protocol has them in GCJ-02 inside China; numbers come as text,
`location` is "lon,lat", what is missing is an empty list, and trouble is told in a 200 as `status` "0" with an
`infocode`. Google's is that of Places (New), where every answer names the fields it is to have, and of Static Maps.
"""

import asyncio
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Any
from urllib.parse import quote

from schemas.settings.services import MapsEndpoint
from tasks.geo.distance import distance_km
from tasks.geo.gcj02 import gcj02_to_wgs84, in_china, wgs84_to_gcj02
from tasks.services.errors import HttpResponse, Kind, ServiceError, invalid_google_key, safe_url
from tasks.services.http import Expected, ServiceClient, key_header
from tasks.services.transport import Connection

PICTURE_PX = 512
# infocode: what is wrong with the key, with the request, with the quota; every other one is an outage.
_KINDS: dict[str, Kind] = {
    "10001": "auth",
    "10002": "auth",
    "20000": "rejected",
    "20001": "rejected",
    "10003": "quota",
    "10044": "quota",
}


@dataclass(frozen=True)
class Poi:
    """A point of interest; what the service does not know is an empty string."""

    id: str
    name: str
    kind: str
    address: str
    district: str
    lat: float
    lon: float


class Maps(ServiceClient):
    """AMap's web service."""

    async def tips(self, text: str, limit: int = 10) -> list[Poi]:
        """Points of interest whose names begin like the text."""
        return await self._rows("/v3/assistant/inputtips", {"keywords": text}, "tips", limit)

    async def find(self, keyword: str, city: str = "", limit: int = 10) -> list[Poi]:
        """Points of interest by name or kind, best first."""
        query = {"keywords": keyword, "offset": min(25, max(1, limit))} | ({"city": city} if city else {})
        return await self._rows("/v3/place/text", query, "pois", limit)

    async def detail(self, poi_id: str) -> Poi | None:
        """One point of interest, or None for an unknown id."""
        pois = await self._rows("/v3/place/detail", {"id": poi_id}, "pois", 1)
        return pois[0] if pois else None

    async def picture(self, lat: float, lon: float, zoom: int, style: str) -> bytes:
        """A picture of the ground around a point, `roadmap` or `satellite`: bytes as they came, not yet decoded."""
        size = f"{PICTURE_PX}*{PICTURE_PX}"
        params: dict[str, str | int] = {
            "location": "{1:.6f},{0:.6f}".format(*wgs84_to_gcj02(lat, lon)),
            "zoom": zoom,
            "size": size,
            "maptype": style,
            "key": "".join(self._http.secrets),
        }
        accepted = ("image/png", "image/jpeg", "application/json")
        response = await self._http.get("/v3/staticmap", params, expected=Expected(accepted))
        if response.content_type.startswith("image/"):
            return response.body
        try:
            trouble = self._trouble(response.json(), response)
        except ValueError:
            trouble = None
        raise trouble or self._http.bad_response("not a picture", response)

    async def _rows(self, path: str, query: dict[str, Any], name: str, limit: int) -> list[Poi]:
        value, response = await self._http.request_json(
            "GET", path, params={**query, "key": "".join(self._http.secrets)}
        )
        trouble = self._trouble(value, response)
        if trouble is not None:
            raise trouble
        rows = self._http.list_under(value, name, response)
        return [poi for row in rows if (poi := _poi(row)) is not None][:limit]

    def _trouble(self, value: Any, response: HttpResponse) -> ServiceError | None:
        if not isinstance(value, dict):
            return self._http.bad_response("not an object", response)
        if str(value.get("status")) == "1":
            return None
        kind = _KINDS.get(str(value.get("infocode")), "outage")
        return ServiceError(
            "maps", kind, f"infocode {str(value.get('infocode'))[:20]}: {safe_url(response.url)}", status=200
        )


def _poi(row: Any) -> Poi | None:
    """A row as a point of interest; None for one without an id, a name or a point, such as a bus line's."""
    if not isinstance(row, dict):
        return None
    lon, _, lat = _text(row.get("location")).partition(",")
    try:
        point = float(lat), float(lon)
    except ValueError:
        return None
    district = _text(row.get("district")) or ", ".join(
        part for part in (_text(row.get(key)) for key in ("cityname", "pname", "country")) if part
    )
    poi = Poi(
        _text(row.get("id")),
        _text(row.get("name")),
        _text(row.get("type")),
        _text(row.get("address")),
        district,
        *point,
    )
    if not (poi.id and poi.name and _on_earth(*point)):
        return None
    true_lat, true_lon = gcj02_to_wgs84(*point)
    return replace(poi, lat=round(true_lat, 6), lon=round(true_lon, 6))


def _on_earth(lat: float, lon: float) -> bool:
    return math.isfinite(lat) and math.isfinite(lon) and abs(lat) <= 90 and abs(lon) <= 180


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


_FIELDS = ("id", "displayName", "primaryTypeDisplayName", "types", "formattedAddress", "location", "addressComponents")
_LEVELS = ("locality", "administrative_area_level_1", "country")  # of an address, from the town upwards
_PLACE_ID = re.compile(r"[A-Za-z0-9_-]{1,256}")


class GoogleMaps(ServiceClient):
    """Google's Places (New) and Static Maps."""

    def __init__(self, connection: Connection, **http_options: Any) -> None:
        endpoint = connection.endpoint
        self._pictures = (endpoint.pictures_url if isinstance(endpoint, MapsEndpoint) else None) or endpoint.base_url
        headers = key_header(connection, "X-Goog-Api-Key", "")
        super().__init__(connection, headers, configured=(self._pictures,), **http_options)

    async def tips(self, text: str, limit: int = 10) -> list[Poi]:
        """Points of interest whose names begin like the text. Suggestions have no position: it is (0, 0) here."""
        value, response = await self._ask("POST", "/v1/places:autocomplete", {"input": text, "languageCode": "en"})
        pois = []
        for row in self._list(value, "suggestions", response):
            told = row.get("placePrediction") if isinstance(row, dict) else None
            if not isinstance(told, dict):
                continue  # a query that is suggested, not a place
            form = told.get("structuredFormat")
            parts: dict[str, Any] = form if isinstance(form, dict) else {}
            name = _said(parts.get("mainText")) or _said(told.get("text"))
            poi = Poi(_text(told.get("placeId")), name, _kind(told), "", _said(parts.get("secondaryText")), 0.0, 0.0)
            pois += [poi] if poi.id and poi.name else []
        return pois[:limit]

    async def find(self, keyword: str, city: str = "", limit: int = 10) -> list[Poi]:
        """Points of interest by name or kind, best first."""
        words = f"{keyword}, {city}" if city else keyword
        query = {"textQuery": words, "pageSize": min(20, max(1, limit)), "languageCode": "en"}
        value, response = await self._ask(
            "POST", "/v1/places:searchText", query, [f"places.{field}" for field in _FIELDS]
        )
        pois = (_place(row) for row in self._list(value, "places", response))
        return [poi for poi in pois if poi is not None][:limit]

    async def detail(self, poi_id: str) -> Poi | None:
        """One point of interest, or None for an unknown id."""
        if not _PLACE_ID.fullmatch(poi_id):  # it becomes a part of the address
            return None
        try:
            value, _ = await self._ask("GET", f"/v1/places/{quote(poi_id, safe='')}", None, _FIELDS)
        except ServiceError as error:
            if error.kind == "not_found" or (error.kind == "rejected" and error.status == 400):
                return None  # Google refuses an id of the wrong form
            raise
        return _place(value)

    async def picture(self, lat: float, lon: float, zoom: int, style: str) -> bytes:
        """A picture of the ground around a point, `roadmap` or `satellite`: bytes as they came, not yet decoded."""
        params: dict[str, str | int] = {
            "center": f"{lat:.6f},{lon:.6f}",
            "zoom": zoom,
            "size": f"{PICTURE_PX}x{PICTURE_PX}",
            "maptype": style,
            "key": "".join(self._http.secrets),
        }
        url = f"{self._pictures}/maps/api/staticmap"
        response = await self._http.fetch(url, params, expected=Expected(("image/png", "image/jpeg")))
        return response.body

    async def _ask(
        self, method: str, path: str, body: dict[str, Any] | None, fields: Sequence[str] = ()
    ) -> tuple[Any, HttpResponse]:
        headers = {"X-Goog-FieldMask": ",".join(fields)} if fields else {}
        return await self._http.request_json(
            method,
            path,
            body=body,
            headers=headers,
            expected=Expected(classify=self._classify, check=self._is_object),
        )

    def _classify(self, response: HttpResponse) -> ServiceError | None:
        return invalid_google_key(self._http.service, response)

    def _is_object(self, value: Any, response: HttpResponse) -> None:
        if not isinstance(value, dict):
            raise self._http.bad_response("not an object", response)

    def _list(self, value: Any, name: str, response: HttpResponse) -> list[Any]:
        rows = value.get(name, [])  # nothing found is an empty object
        if not isinstance(rows, list):
            raise self._http.bad_response(f"no list under '{name}'", response)
        return rows


def _place(row: Any) -> Poi | None:
    """A place as a point of interest; None for one without an id, a name or a point."""
    point: Any = row.get("location") if isinstance(row, dict) else None
    try:
        lat, lon = float(point["latitude"]), float(point["longitude"])
    except (KeyError, TypeError, ValueError):
        return None
    levels: dict[str, str] = {}
    for part in row.get("addressComponents") or ():
        if isinstance(part, dict):
            levels |= {str(kind): _text(part.get("longText")) for kind in part.get("types") or ()}
    district = ", ".join(levels[level] for level in _LEVELS if levels.get(level))
    poi = Poi(_text(row.get("id")), _said(row.get("displayName")), _kind(row), _text(row.get("formattedAddress")),
              district, lat, lon)  # fmt: skip
    return poi if poi.id and poi.name and _on_earth(lat, lon) else None


def _said(value: Any) -> str:
    """The text of Google's localized and formatted texts."""
    return _text(value.get("text")) if isinstance(value, dict) else ""


def _kind(row: dict[str, Any]) -> str:
    types = row.get("types")
    first = types[0] if isinstance(types, list) and types and isinstance(types[0], str) else ""
    return _said(row.get("primaryTypeDisplayName")) or first.replace("_", " ")


class BothMaps:
    """Two providers as one, as maps are served by region: what lies in China is the first's, all else the second's.

    A name may be anywhere, so both get it. Ids tell whose they are.
    """

    SAME_KM = 0.2  # two points of one name nearer than this are one

    def __init__(self, china: "Maps | GoogleMaps", world: "Maps | GoogleMaps") -> None:
        self._providers = {"cn": china, "world": world}

    async def tips(self, text: str, limit: int = 10) -> list[Poi]:
        """Points of interest whose names begin like the text, the providers' in turn."""
        home, abroad = await asyncio.gather(*(provider.tips(text, limit) for provider in self._providers.values()))
        return self._merged([[poi for poi in home if in_china(poi.lat, poi.lon)], abroad])[:limit]

    async def find(self, keyword: str, city: str = "", limit: int = 10) -> list[Poi]:
        """Points of interest by name or kind, the providers' in turn, each in its own region."""
        home, abroad = await asyncio.gather(
            *(provider.find(keyword, city, limit) for provider in self._providers.values())
        )
        mine = [poi for poi in home if in_china(poi.lat, poi.lon)]
        others = [poi for poi in abroad if not in_china(poi.lat, poi.lon)]
        return self._merged([mine, others])[:limit]

    async def detail(self, poi_id: str) -> Poi | None:
        """One point of interest, or None for an unknown id."""
        whose, _, own = poi_id.partition(":")
        poi = await self._providers[whose].detail(own) if whose in self._providers else None
        return poi and replace(poi, id=poi_id)

    async def picture(self, lat: float, lon: float, zoom: int, style: str) -> bytes:
        """A picture of the ground around a point, of the provider that serves it."""
        return await self._providers["cn" if in_china(lat, lon) else "world"].picture(lat, lon, zoom, style)

    async def close(self) -> None:
        for provider in self._providers.values():
            await provider.close()

    def _merged(self, rows_by_provider: Sequence[Sequence[Poi]]) -> list[Poi]:
        named = (
            [replace(poi, id=f"{whose}:{poi.id}") for poi in rows]
            for whose, rows in zip(self._providers, rows_by_provider, strict=True)
        )
        kept: list[Poi] = []
        for poi in chain.from_iterable(zip_longest(*named)):
            if poi is not None and not any(self._are_one(poi, other) for other in kept):
                kept.append(poi)
        return kept

    def _are_one(self, poi: Poi, other: Poi) -> bool:
        same = poi.name == other.name and poi.id.partition(":")[0] != other.id.partition(":")[0]
        return same and distance_km(poi.lat, poi.lon, other.lat, other.lon) < self.SAME_KM


def open_maps(connection: Connection, world: Connection | None = None) -> "Maps | GoogleMaps | BothMaps":
    """The map service that the endpoint speaks, with a second one for what lies outside China where there is one."""
    first = _provider(connection)
    return first if world is None else BothMaps(first, _provider(world))


def _provider(connection: Connection) -> "Maps | GoogleMaps":
    endpoint = connection.endpoint
    is_google = isinstance(endpoint, MapsEndpoint) and endpoint.protocol == "google"
    return GoogleMaps(connection) if is_google else Maps(connection)
