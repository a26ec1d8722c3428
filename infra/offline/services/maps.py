"""Map tools: input tips, keyword search, detail of a point, static pictures.

The JSON is AMap's (`/v3/assistant/inputtips`, `/v3/place/text`, `/v3/place/detail`, `/v3/staticmap`): numbers are
strings, `location` is "lon,lat", what is missing is an empty list, and trouble is told in a 200 as `status` "0" with
`info` and `infocode`. Coordinates are GCJ-02 inside China and WGS 84 elsewhere.
"""

import io
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import anyio
import numpy as np
from cachetools import LRUCache, cached
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from infra.offline import ids
from infra.offline.computing import compute_in_thread
from infra.offline.data import read_table
from infra.offline.facts import countries
from infra.offline.gazetteer import City, NameIndex
from infra.offline.maps.china_shift import shifted, unshifted
from infra.offline.maps.view import HIGHEST_LAT, View
from infra.offline.place import Place, point_along
from infra.offline.seeded_random import fraction
from infra.offline.side_streets import Street, map_point
from infra.offline.sign_index import SignIndex
from infra.offline.words import KINDS, WORDS, fold
from infra.offline.world import World

FIRST_SIDE_STREET = 1 << 30  # of an id's place number; below are places
FIRST_SLOT = 16  # of an id; below are images, from 32 on map features
# (type, code) in the classes of the map service this speaks like.
TYPES = {row["kind"]: (row["amap_type"], row["amap_code"]) for row in read_table("place_kinds.csv")}
KEY = "offline-world-maps"  # public: it opens only this world
MOST_TIPS, PAGE, MOST_PAGE = 10, 20, 25
HIGHEST_ZOOM, LARGEST_PX = 18, 1024
_KEPT_PICTURES = 256
STYLES = ("roadmap", "satellite")
_NO_KEY, _NO_PARAMETERS, _BAD_PARAMETERS = (
    ("INVALID_USER_KEY", "10001"), ("MISSING_REQUIRED_PARAMS", "20001"), ("INVALID_PARAMS", "20000"),
)  # fmt: skip


@dataclass(frozen=True)
class Poi:
    """One point of interest."""

    poi_id: str
    name: str
    kind: str  # a key of TYPES
    lat: float
    lon: float
    address: str
    phone: str
    city: City


class PoiTable:
    """All points of interest of a world; nothing is stored, an id says which one it is."""

    def __init__(self, world: World, names: NameIndex, signs: SignIndex) -> None:
        self.world, self.names, self.signs = world, names, signs

    def get(self, poi_id: str) -> Poi | None:
        """The point with an id, or None."""
        if poi_id.startswith("G") and poi_id[1:].isascii() and poi_id[1:].isdigit():
            return self._town_by_number(int(poi_id[1:]))
        if not poi_id.startswith("B0"):
            return None
        try:
            number = str(int(poi_id[2:], 16))
        except ValueError:
            return None
        position = ids.read_image_id(self.world.seed, number)
        if position is None:
            return None
        street: Street | None = None
        if 0 <= position[0] < self.world.size:
            street = self.world.place(position[0])
        elif position[0] >= FIRST_SIDE_STREET:
            street = self.world.side_streets.street(position[0] - FIRST_SIDE_STREET)
        known = self.of_street(street) if street is not None else []
        slot = position[1] - FIRST_SLOT
        return known[slot] if 0 <= slot < len(known) else None

    def of_street(self, street: Street) -> list[Poi]:
        """The points of one street: itself, then its signs in their order along it."""
        rows = [(street.street, "street", 0.0, "")]
        for k, sign in enumerate(street.shops):
            rows.append((sign.lines[0], sign.kind, 9.0 + 15.0 * k, sign.lines[1] if len(sign.lines) > 1 else ""))
        index = street.index if isinstance(street, Place) else FIRST_SIDE_STREET + street.index
        pois = []
        for k, (name, kind, along_m, phone) in enumerate(rows):
            number = int(ids.image_id(self.world.seed, index, FIRST_SLOT + k))
            lat, lon = (round(part, 6) for part in point_along(*map_point(street), street.bearing_deg, along_m))
            address = "" if kind == "street" else f"{street.street} {1 + street.paint_seed % 89 + 2 * k}"
            pois.append(Poi(f"B0{number:X}", name, kind, lat, lon, address, phone.removeprefix("Tel. "), street.city))
        return pois

    def search(self, text: str, within: str = "", most: int = 50) -> list[Poi]:
        """Points whose names fit a text, best first; `within` is a town or country they must lie in.

        A category ("pharmacy", "Apotheke") with a town lists the town's points of that kind.
        """
        wanted = fold(within)
        towns = {match.row for match in self.names.cities(within)[:8]} if wanted else set()
        land = self.names.country(within) if wanted else None
        kind = category_of(text)
        if kind is not None and towns:
            listed = [poi for row in sorted(towns) for poi in self._of_town(row) if poi.kind == kind]
            return listed[:most]
        pois: list[Poi] = []
        for match in self.names.cities(text)[:8]:
            pois.append(_town(self.world.gazetteer.city(match.row)))
        for hit in self.signs.find(text, most=most, towns=towns, lands={land} if land else ()):
            if hit.score >= 0.3:
                pois += [poi for poi in self.of_street(hit.street) if poi.name == hit.text][:1]
        if wanted:
            pois = [poi for poi in pois if wanted in _region_names(poi.city)]
        return list({poi.poi_id: poi for poi in pois}.values())[:most]

    def complete(self, text: str, within: str = "", most: int = 10) -> list[Poi]:
        """Points whose names begin with a text, as someone types it; else what a search finds."""
        begun = fold(text)
        towns = {match.row for match in self.names.cities(within)[:4]} if within.strip() else set()
        pois = [poi for row in sorted(towns) for poi in self._of_town(row) if fold(poi.name).startswith(begun)]
        known = {poi.poi_id for poi in pois}
        if not towns and len(begun) >= 3:
            rows = self.names.beginning_with(begun, most)
            pois += [_town(self.world.gazetteer.city(row)) for row in rows]
            known = {poi.poi_id for poi in pois}
        texts = [text, *self.signs.completions(text, most)]
        hits = {poi.poi_id: poi for begun_text in texts for poi in self.search(begun_text, within, most)}
        searched = [poi for poi in hits.values() if poi.poi_id not in known]
        exact = [poi for poi in searched if fold(poi.name) == begun]
        return [*exact, *pois, *(poi for poi in searched if poi not in exact)][:most]

    def _of_town(self, row: int) -> list[Poi]:
        streets: list[Street] = [self.world.place(index) for index in self.world.places_of_town(row)]
        streets += self.world.side_streets.of_town(row)
        # In the order of their ids: a list that began with the photographed street would give it away.
        return sorted((poi for street in streets for poi in self.of_street(street)), key=lambda poi: poi.poi_id)

    def _town_by_number(self, geoname_id: int) -> Poi | None:
        ids_of = self.world.gazetteer.ids
        row = int(np.searchsorted(ids_of, geoname_id))
        if row >= len(ids_of) or int(ids_of[row]) != geoname_id:
            return None
        return _town(self.world.gazetteer.city(row))


@lru_cache(maxsize=1)
def _categories() -> dict[str, str]:
    """Folded category word, in any language, to a key of TYPES."""
    categories = {fold(words.word(kind)): kind for words in WORDS.values() for kind in KINDS}
    categories |= {fold(TYPES[kind][0].split(";")[-1]): kind for kind in TYPES}
    return categories | {"supermarket": "market", "food": "restaurant", "road": "street", "street": "street"}


def category_of(text: str) -> str | None:
    """The kind of point a category word means, singular or plural, or None where the text is a name."""
    folded = fold(text)
    return _categories().get(folded) or _categories().get(folded.removesuffix("s"))


def _town(city: City) -> Poi:
    return Poi(f"G{city.geoname_id}", city.name, "city", round(city.lat, 6), round(city.lon, 6), "", "", city)


def _region_names(city: City) -> set[str]:
    facts = countries()[city.country]
    return {fold(name) for name in (city.name, city.admin1, facts.name, facts.iso2, *city.alternate_names) if name}


class Maps:
    """Map tools over a world."""

    def __init__(self, world: World, names: NameIndex, signs: SignIndex) -> None:
        self.world, self.table = world, PoiTable(world, names, signs)
        self.picture = cached(LRUCache(_KEPT_PICTURES), condition=threading.Condition())(self._paint)

    def routes(self) -> list[Route]:
        """The routes to mount."""
        return [
            Route("/maps/v3/assistant/inputtips", self._keyed(self._tips)),
            Route("/maps/v3/place/text", self._keyed(self._text)),
            Route("/maps/v3/place/detail", self._keyed(self._detail)),
            Route("/maps/v3/staticmap", self._static),
        ]

    def _keyed(self, answer: Callable[[Any], dict[str, Any]]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            if len(request.query_params.get("key", "")) < 8:
                return _trouble(*_NO_KEY)
            try:
                body = await anyio.to_thread.run_sync(answer, request.query_params)
            except ValueError:
                return _trouble(*_BAD_PARAMETERS)
            except KeyError:
                return _trouble(*_NO_PARAMETERS)
            return _json({"status": "1", "info": "OK", "infocode": "10000", **body})

        return endpoint

    def _tips(self, query: Any) -> dict[str, Any]:
        pois = self.table.complete(_given(query, "keywords"), query.get("city", ""), MOST_TIPS)
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
            for poi in pois
        ]
        return {"count": str(len(tips)), "tips": tips}

    def _text(self, query: Any) -> dict[str, Any]:
        size = _whole(query.get("offset", str(PAGE)), MOST_PAGE)
        found = self.table.search(_given(query, "keywords"), query.get("city", ""), MOST_PAGE * 4)
        pois = [_row(poi, False) for poi in found[:size]]
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
        return await self.show(View.around(*unshifted(lat, lon), zoom, width, height), style)

    async def show(self, view: View, style: str) -> Response:
        """A view as a picture."""
        data = await compute_in_thread(self.picture, view, style)
        return Response(data, media_type="image/png", headers={"cache-control": "max-age=86400"})

    def _paint(self, view: View, style: str) -> bytes:
        """PNG bytes of a view, the same for the same pixels."""
        # It brings SciPy and shapely: only a request for a map waits for them.
        from infra.offline.maps.drawing import draw_map

        buffer = io.BytesIO()
        draw_map(self.world, view, style).save(buffer, "PNG", compress_level=6)
        return buffer.getvalue()


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
    lat, lon = shifted(poi.lat, poi.lon) if poi.city.country == "CN" else (poi.lat, poi.lon)
    return f"{lon:.6f},{lat:.6f}"


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
