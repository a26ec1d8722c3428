"""Searching the scene archive: the request checked, conditions on properties (query extension and the part of CQL2
JSON that people use), and the scenes that match, pass by pass in order of time."""

import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import shapely
import shapely.geometry
from shapely.affinity import translate

from infra.offline.scenes.orbit import (
    CYCLE_DAYS,
    FIRST_DAY,
    LAST_DAY,
    LEAST_SHARE,
    Scene,
    footprint,
    orbits_near,
    pass_time,
    scene_with_id,
    swath_share,
)
from infra.offline.scenes.paint import cloud_percent
from infra.offline.scenes.tiles import Tile, tiles_in
from infra.offline.services.stac_items import COLLECTION, properties

Look = Callable[[str], Any]  # a property's value, None where the item has none
Condition = Callable[[Look], bool]

PROPERTIES = frozenset(
    ("id", "collection", "datetime", "platform", "constellation", "eo:cloud_cover", "sat:orbit_state",
     "sat:relative_orbit", "s2:mgrs_tile", "s2:nodata_pixel_percentage", "s2:processing_baseline", "s2:product_type",
     "s2:product_uri", "s2:mean_solar_zenith", "s2:mean_solar_azimuth", "proj:epsg", "proj:code")
)  # fmt: skip
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "lt": operator.lt, "lte": operator.le, "gt": operator.gt, "gte": operator.ge, "eq": operator.eq, "neq": operator.ne,
}  # fmt: skip
_SIGNS = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte", "=": "eq", "<>": "neq"}
_TEXT: dict[str, Callable[[str, str], bool]] = {
    "startsWith": str.startswith, "endsWith": str.endswith, "contains": operator.contains,
}  # fmt: skip
_DEEPEST = 20
DEFAULT_LIMIT, MAX_LIMIT = 250, 1000
_KNOWN = frozenset(
    ("collections", "ids", "bbox", "intersects", "datetime", "limit", "query", "filter", "filter-lang", "filter_lang",
     "filter-crs", "token", "sortby")
)  # fmt: skip
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


def _known(name: Any) -> str:
    if not isinstance(name, str) or name.removeprefix("properties.") not in PROPERTIES:
        raise ValueError(f"property {str(name)[:60]!r}: unknown")
    return name.removeprefix("properties.")


def _compare(kind: str, name: str, value: Any) -> Condition:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{name}: a number or a text is needed to compare with")
    check = _ORDER[kind]

    def holds(look: Look) -> bool:
        found = look(name)
        if found is None or isinstance(found, str) is not isinstance(value, str):
            return False  # as in SQL: nothing is known of a missing value
        return check(found, value)

    return holds


def read_query(query: Any) -> list[Condition]:
    """Conditions of the query extension: `{"eo:cloud_cover": {"lt": 20}}`."""
    if not isinstance(query, dict):
        raise ValueError("query: an object is needed")
    conditions: list[Condition] = []
    for name, wanted in query.items():
        if not isinstance(wanted, dict):
            raise ValueError(f"query {name[:60]!r}: an object of operators is needed")
        known = _known(name)
        for kind, value in wanted.items():
            if kind in _ORDER:
                conditions.append(_compare(kind, known, value))
            elif kind == "in" and isinstance(value, list):
                conditions.append(_any([_compare("eq", known, one) for one in value]))
            elif kind in _TEXT and isinstance(value, str):
                conditions.append(_text(kind, known, value))
            else:
                raise ValueError(f"query {known}: operator {kind[:40]!r} is not supported")
    return conditions


def _text(kind: str, name: str, value: str) -> Condition:
    return lambda look: isinstance(look(name), str) and _TEXT[kind](look(name), value)


def _any(parts: list[Condition]) -> Condition:
    return lambda look: any(part(look) for part in parts)


def _all(parts: list[Condition]) -> Condition:
    return lambda look: all(part(look) for part in parts)


def read_filter(wanted: Any, asked: dict[str, Any]) -> list[Condition]:
    """Conditions of a CQL2 JSON filter; none without one."""
    if wanted is None:
        return []
    language = asked.get("filter-lang", asked.get("filter_lang", "cql2-json"))
    if language != "cql2-json":
        raise ValueError(f"filter-lang: {str(language)[:40]!r}; only cql2-json is supported")
    return [_expression(wanted, 0)]


def _expression(node: Any, depth: int) -> Condition:
    if not isinstance(node, dict) or not isinstance(node.get("args"), list) or depth > _DEEPEST:
        raise ValueError('filter: expressions like {"op": "<=", "args": [...]} are needed')
    kind, args = node.get("op"), node["args"]
    if kind in ("and", "or") and args:
        parts = [_expression(part, depth + 1) for part in args]
        return _all(parts) if kind == "and" else _any(parts)
    if kind == "not" and len(args) == 1:
        inner = _expression(args[0], depth + 1)
        return lambda look: not inner(look)
    if not args or not isinstance(args[0], dict):
        raise ValueError(f"filter: the first argument of {str(kind)[:40]!r} must be a property")
    name = _known(args[0].get("property"))
    if kind in _SIGNS and len(args) == 2:
        return _compare(_SIGNS[kind], name, _literal(args[1]))
    if kind == "between" and len(args) == 3:
        return _all([_compare("gte", name, _literal(args[1])), _compare("lte", name, _literal(args[2]))])
    if kind == "in" and len(args) == 2 and isinstance(args[1], list):
        return _any([_compare("eq", name, _literal(one)) for one in args[1]])
    if kind == "isNull" and len(args) == 1:
        return lambda look: look(name) is None
    raise ValueError(f"filter: operator {str(kind)[:40]!r} with {len(args)} arguments is not supported")


def _literal(value: Any) -> Any:
    """A plain value; times of CQL2 are compared as text, which sorts as time does."""
    return value.get("timestamp", value.get("date")) if isinstance(value, dict) else value


class BadRequest(ValueError):
    """What is wrong with a search; answered with status 400 in plain text."""


@dataclass(frozen=True)
class Search:
    """A checked search."""

    collections: tuple[str, ...] | None = None
    ids: tuple[str, ...] | None = None
    area: Any = None  # a shapely geometry in (lon, lat)
    start: datetime = FIRST_DAY
    end: datetime = LAST_DAY
    conditions: tuple[Condition, ...] = ()
    newest_first: bool = True
    limit: int = DEFAULT_LIMIT
    after: str = ""  # the id of the last item of the page before
    asked: dict[str, Any] = field(default_factory=dict)


def from_query(params: Mapping[str, str]) -> dict[str, Any]:
    """A GET search's parameters in the shape of a POST body."""
    body: dict[str, Any] = dict(params)
    for name in ("collections", "ids"):
        if name in body:
            body[name] = [part for part in body[name].split(",") if part]
    if "bbox" in body:
        try:
            body["bbox"] = [float(part) for part in body["bbox"].split(",")]
        except ValueError as error:
            raise BadRequest("bbox: numbers separated by commas are needed") from error
    for name in ("intersects", "query"):
        if name in body:
            body[name] = _json(name, body[name])
    if "filter" in body:
        # The API's own default for GET is the text form, which this server does not speak.
        if body.get("filter-lang", body.get("filter_lang", "cql2-text")) != "cql2-json":
            raise BadRequest("filter-lang: only cql2-json is supported")
        body["filter"] = _json("filter", body["filter"])
    if "limit" in body:
        if not re.fullmatch(r"-?\d{1,9}", body["limit"]):
            raise BadRequest("limit: a whole number is needed")
        body["limit"] = int(body["limit"])
    if "sortby" in body:
        body["sortby"] = [
            {"field": part.lstrip("+- "), "direction": "desc" if part.startswith("-") else "asc"}
            for part in body["sortby"].split(",")
        ]
    return body


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadRequest(f"{name}: not JSON") from error


def read_search(body: Any) -> Search:
    """A search from a request's body; BadRequest says what is wrong."""
    if not isinstance(body, dict):
        raise BadRequest("an object is needed")
    unknown = sorted(set(body) - _KNOWN)
    if unknown:
        raise BadRequest(f"{unknown[0]}: not supported here")
    asked = {name: value for name, value in body.items() if value is not None}
    if "bbox" in asked and "intersects" in asked:
        raise BadRequest("bbox and intersects: only one of them may be given")
    start, end = _times(asked.get("datetime"))
    try:
        conditions = (*read_query(asked.get("query", {})), *read_filter(asked.get("filter"), asked))
    except ValueError as error:
        raise BadRequest(str(error)) from error
    limit = asked.get("limit", DEFAULT_LIMIT)
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
        raise BadRequest(f"limit: a whole number from 1 to {MAX_LIMIT} is needed")
    return Search(
        collections=_names("collections", asked),
        ids=_names("ids", asked),
        area=_box(asked["bbox"]) if "bbox" in asked else _shape(asked["intersects"]) if "intersects" in asked else None,
        start=start,
        end=end,
        conditions=conditions,
        newest_first=_newest_first(asked.get("sortby")),
        limit=limit,
        after=_after(asked.get("token", "")),
        asked=asked,
    )


def _names(name: str, asked: dict[str, Any]) -> tuple[str, ...] | None:
    value = asked.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise BadRequest(f"{name}: a list of texts is needed")
    return tuple(value) or None


def _after(token: Any) -> str:
    if not token:
        return ""
    match = re.fullmatch(r"next:sentinel-2-l2a:([\w]+)", token) if isinstance(token, str) else None
    if not match:
        raise BadRequest("token: not one of this server")
    return match[1]


def _newest_first(sortby: Any) -> bool:
    if not sortby:
        return True
    one = sortby[0] if isinstance(sortby, list) and len(sortby) == 1 else None
    if not isinstance(one, dict) or one.get("field") not in ("datetime", "properties.datetime"):
        raise BadRequest("sortby: only datetime is supported")
    if one.get("direction", "asc") not in ("asc", "desc"):
        raise BadRequest("sortby: asc or desc is needed")
    return bool(one.get("direction", "asc") == "desc")


def _times(value: Any) -> tuple[datetime, datetime]:
    if value in (None, "", "..", "../.."):
        return FIRST_DAY, LAST_DAY
    if not isinstance(value, str):
        raise BadRequest("datetime: a text is needed")
    parts = value.split("/")
    if len(parts) > 2:
        raise BadRequest("datetime: one instant or two, separated by a slash, are needed")
    if len(parts) == 1:
        return (_instant(parts[0]),) * 2
    start = FIRST_DAY if parts[0] in ("", "..") else _instant(parts[0])
    end = LAST_DAY if parts[1] in ("", "..") else _instant(parts[1])
    if start > end:
        raise BadRequest("datetime: the start lies after the end")
    return start, end


def _instant(text: str) -> datetime:
    if not _INSTANT.fullmatch(text):
        raise BadRequest(f"datetime: {text[:40]!r} is not an RFC 3339 time")
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise BadRequest(f"datetime: {text[:40]!r} is not a time") from error


def _box(value: Any) -> Any:
    numbers = value if isinstance(value, list) else []
    if len(numbers) not in (4, 6) or not all(
        isinstance(n, int | float) and not isinstance(n, bool) and math.isfinite(n) for n in numbers
    ):
        raise BadRequest("bbox: 4 or 6 numbers are needed")
    west, south, east, north = (
        (float(numbers[k]) for k in (0, 1, 3, 4)) if len(numbers) == 6 else (float(number) for number in numbers)
    )
    if not (-180 <= west <= 180 and -180 <= east <= 180 and -90 <= south <= north <= 90):
        raise BadRequest("bbox: west, south, east, north in degrees are needed, south not above north")
    if west <= east:
        return shapely.box(west, south, east, north)
    return shapely.box(west, south, east + 360, north)  # over the date line


def _shape(value: Any) -> Any:
    try:
        shape = shapely.geometry.shape(value)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, shapely.errors.ShapelyError) as error:
        raise BadRequest("intersects: a GeoJSON geometry is needed") from error
    if shape.is_empty or not all(math.isfinite(b) for b in shape.bounds):
        raise BadRequest("intersects: a GeoJSON geometry is needed")
    if not (-180 <= shape.bounds[0] <= shape.bounds[2] <= 180 and -90 <= shape.bounds[1] <= shape.bounds[3] <= 90):
        raise BadRequest("intersects: coordinates are longitude and latitude in degrees")
    return shapely.make_valid(shape)


def find_scenes(seed: int, search: Search) -> tuple[list[Scene], bool]:
    """(one page of scenes, whether more follow)."""
    if search.collections is not None and COLLECTION not in search.collections:
        return [], False
    page: list[Scene] = []
    for scene in _ordered(search):
        look = partial(_look, seed, scene)
        if all(condition(look) for condition in search.conditions):
            if len(page) == search.limit:
                return page, True
            page.append(scene)
    return page, False


def _look(seed: int, scene: Scene, name: str) -> Any:
    if name == "id":
        return scene.id
    if name == "collection":
        return COLLECTION
    if name == "eo:cloud_cover":  # what most searches ask; the others come all at once
        return cloud_percent(seed, scene)
    return properties(seed, scene).get(name)


def _ordered(search: Search) -> Iterator[Scene]:
    """Scenes that match in place, time and id, in order of time and then of id, after the page before."""
    last = None
    if search.after:
        last = scene_with_id(search.after)
        if last is None:
            raise BadRequest("token: not one of this server")
    sign = -1 if search.newest_first else 1
    seen: dict[tuple[Tile, int], bool] = {}
    for at, orbit, number, tiles in _passes(search):
        if last is not None and (at - last.at) * sign < timedelta(0):
            continue
        scenes = [Scene(tile, orbit, number) for tile in tiles if _matches(tile, orbit, search, seen)]
        if search.ids is not None:
            scenes = [scene for scene in scenes if scene.id in search.ids]
        for scene in sorted(scenes, key=lambda scene: scene.id, reverse=search.newest_first):
            if last is None or (at != last.at) or (scene.id < last.id if search.newest_first else scene.id > last.id):
                yield scene


def _passes(search: Search) -> Iterator[tuple[Any, int, int, list[Tile]]]:
    """(time, orbit, number, tiles that may be seen) of every pass in question, in the order asked for."""
    tiles = _tiles(search)
    if not tiles:
        return
    lat, lon = (np.array([tile.centre[k] for tile in tiles]) for k in (0, 1))
    start, end = max(search.start, FIRST_DAY), min(search.end, LAST_DAY - timedelta(seconds=1))
    half = timedelta(days=CYCLE_DAYS / 2)
    passes = []
    near = orbits_near(lat, lon)
    for orbit in near:
        zero = pass_time(orbit, 0)
        # Pass times are cut to whole seconds, so look one further on either side.
        for number in range(math.floor((start - zero) / half) - 1, math.ceil((end - zero) / half) + 2):
            at = pass_time(orbit, number)
            # Items carry fractions of a second; a search to the second must find them.
            if start <= at + timedelta(milliseconds=24) and at <= end:
                passes.append((at, orbit, number))
    for at, orbit, number in sorted(passes, reverse=search.newest_first):
        yield at, orbit, number, [tiles[int(k)] for k in near[orbit]]


def _tiles(search: Search) -> list[Tile]:
    if search.ids is not None:
        scenes = [scene_with_id(one) for one in search.ids]
        return sorted({scene.tile for scene in scenes if scene is not None}, key=lambda tile: tile.name)
    if search.area is None:
        return tiles_in(-180.0, -90.0, 180.0, 90.0)
    return tiles_in(*search.area.bounds)


def _matches(tile: Tile, orbit: int, search: Search, seen: dict[tuple[Tile, int], bool]) -> bool:
    if (tile, orbit) not in seen:
        seen[tile, orbit] = swath_share(tile, orbit) > LEAST_SHARE and (
            search.area is None or _intersects(footprint(tile, orbit), search.area)
        )
    return seen[tile, orbit]


def _intersects(shape: Any, area: Any) -> bool:
    west, _, east, _ = shape.bounds
    return any(
        west + turn <= area.bounds[2]
        and east + turn >= area.bounds[0]
        and shapely.intersects(translate(shape, turn), area)
        for turn in (-360.0, 0.0, 360.0)
    )
