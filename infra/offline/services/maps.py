"""Map tools: input tips, keyword search, detail of a point, static pictures and tiles.

The JSON is AMap's (`/v3/assistant/inputtips`, `/v3/place/text`, `/v3/place/detail`, `/v3/staticmap`): numbers are
strings, `location` is "lon,lat", what is missing is an empty list, and trouble is told in a 200 as `status` "0" with
`info` and `infocode`. Coordinates are WGS 84.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from infra.offline.computing import compute
from infra.offline.facts import countries
from infra.offline.maps import STYLES, draw_map, png
from infra.offline.maps.poi import TYPES, Poi, PoiTable
from infra.offline.maps.view import HIGHEST_LAT, View
from infra.offline.names import NameIndex
from infra.offline.seeded_random import fraction
from infra.offline.sign_index import SignIndex
from infra.offline.world import World

KEY = "offline-world-maps"  # public: it opens only this world
MOST_TIPS, PAGE, MOST_PAGE = 10, 20, 25
LOWEST_ZOOM, HIGHEST_ZOOM, LARGEST_PX = 1, 18, 1024
_KEPT_PICTURES = 256
_NO_KEY, _NO_PARAMETERS, _BAD_PARAMETERS = (
    ("INVALID_USER_KEY", "10001"), ("MISSING_REQUIRED_PARAMS", "20001"), ("INVALID_PARAMS", "20000"),
)  # fmt: skip


class Maps:
    """Map tools over a world."""

    def __init__(self, world: World, names: NameIndex, signs: SignIndex) -> None:
        self.world, self.table = world, PoiTable(world, names, signs)
        self._pictures: OrderedDict[tuple[View, str], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def routes(self) -> list[Route]:
        """The routes to mount."""
        return [
            Route("/maps/v3/assistant/inputtips", self._keyed(self._tips)),
            Route("/maps/v3/place/text", self._keyed(self._text)),
            Route("/maps/v3/place/detail", self._keyed(self._detail)),
            Route("/maps/v3/staticmap", self._static),
            Route("/maps/tiles/{z:int}/{x:int}/{y:int}.png", self._tile),
        ]

    def _keyed(self, answer: Callable[[Any], dict[str, Any]]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            if len(request.query_params.get("key", "")) < 8:
                return _trouble(*_NO_KEY)
            try:
                found = await anyio.to_thread.run_sync(answer, request.query_params)
            except ValueError:
                return _trouble(*_BAD_PARAMETERS)
            except KeyError:
                return _trouble(*_NO_PARAMETERS)
            return _json({"status": "1", "info": "OK", "infocode": "10000", **found})

        return endpoint

    def _tips(self, query: Any) -> dict[str, Any]:
        found = self.table.complete(_given(query, "keywords"), query.get("city", ""), MOST_TIPS)
        tips: list[dict[str, Any]] = [
            {
                "id": poi.poi_id,
                "name": poi.name,
                "district": _district(poi),
                "adcode": [],
                "location": _location(poi),
                "address": poi.address or [],
                "typecode": TYPES[poi.kind][1],
                "city": [],
            }
            for poi in found
        ]
        return {"count": str(len(tips)), "tips": tips}

    def _text(self, query: Any) -> dict[str, Any]:
        size, page = _whole(query.get("offset", str(PAGE)), MOST_PAGE), _whole(query.get("page", "1"), 100)
        found = self.table.search(_given(query, "keywords"), query.get("city", ""), MOST_PAGE * 4)
        wanted = {code for code in query.get("types", "").split("|") if code}
        found = [poi for poi in found if not wanted or TYPES[poi.kind][1] in wanted]
        shown = found[size * (page - 1) : size * page]
        pois = [_row(poi, query.get("extensions") == "all") for poi in shown]
        return {"count": str(len(found)), "suggestion": {"keywords": [], "cities": []}, "pois": pois}

    def _detail(self, query: Any) -> dict[str, Any]:
        poi = self.table.get(_given(query, "id"))
        return {"count": str(int(poi is not None)), "pois": [] if poi is None else [_row(poi, True)]}

    async def _static(self, request: Request) -> Response:
        query = request.query_params
        if len(query.get("key", "")) < 8:
            return _trouble(*_NO_KEY)
        if "location" not in query:
            return _trouble(*_NO_PARAMETERS)
        style = query.get("maptype", "roadmap")
        try:
            lon, lat = (float(part) for part in query["location"].split(","))
            zoom = _whole(query.get("zoom", "15"), HIGHEST_ZOOM)
            width, height = (
                _whole(part, LARGEST_PX) for part in query.get("size", "400*400").replace("x", "*").split("*")
            )
        except ValueError:
            return _trouble(*_BAD_PARAMETERS)
        if not (abs(lat) <= HIGHEST_LAT and abs(lon) <= 180 and style in STYLES):
            return _trouble(*_BAD_PARAMETERS)
        return await self._picture(View.around(lat, lon, zoom, width, height), style)

    async def _tile(self, request: Request) -> Response:
        z, x, y = (request.path_params[axis] for axis in "zxy")
        style = request.query_params.get("style", "roadmap")
        if z > HIGHEST_ZOOM or x >= 1 << z or y >= 1 << z or style not in STYLES:
            return PlainTextResponse("Not Found", 404)
        return await self._picture(View.tile(z, x, y), style)

    async def _picture(self, view: View, style: str) -> Response:
        data = await compute(self.picture, view, style)
        return Response(data, media_type="image/png", headers={"cache-control": "max-age=86400"})

    def picture(self, view: View, style: str) -> bytes:
        """PNG bytes of a view; painted once while there is room to keep it."""
        with self._lock:
            if (view, style) in self._pictures:
                self._pictures.move_to_end((view, style))
                return self._pictures[view, style]
        data = png(draw_map(self.world, view, style))
        with self._lock:
            self._pictures[view, style] = data
            while len(self._pictures) > _KEPT_PICTURES:
                self._pictures.popitem(last=False)
        return data


def _given(query: Any, name: str) -> str:
    text = query.get(name, "").strip()
    if not text:
        raise KeyError(name)
    return str(text)


def _whole(text: str, most: int) -> int:
    if not text.isdigit() or not 1 <= int(text) <= most:
        raise ValueError(f"{text!r}: a whole number between 1 and {most} is needed")
    return int(text)


def _location(poi: Poi) -> str:
    return f"{poi.lon:.6f},{poi.lat:.6f}"


def _district(poi: Poi) -> str:
    return ", ".join(part for part in (countries()[poi.city.country].name, poi.city.admin1, poi.city.name) if part)


def _row(poi: Poi, full: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": poi.poi_id,
        "name": poi.name,
        "type": TYPES[poi.kind][0],
        "typecode": TYPES[poi.kind][1],
        "address": poi.address or [],
        "location": _location(poi),
        "tel": poi.phone or [],
        "pname": poi.city.admin1 or countries()[poi.city.country].name,
        "cityname": poi.city.name,
        "adname": poi.city.name,
        "country": countries()[poi.city.country].name,
        "distance": [],
    }
    if full:
        shop = poi.kind in ("bakery", "restaurant", "pharmacy", "market")
        rating = f"{3 + 2 * fraction('rating', poi.poi_id):.1f}" if shop else []
        row |= {"biz_ext": {"rating": rating, "open_time": "Mo-Sa 08:00-19:00" if shop else []}, "photos": []}
    return row


def _json(body: dict[str, Any]) -> Response:
    return Response(json.dumps(body, ensure_ascii=False), media_type="application/json; charset=utf-8")


def _trouble(info: str, infocode: str) -> Response:
    return _json({"status": "0", "info": info, "infocode": infocode})
