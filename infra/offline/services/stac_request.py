"""A search as asked: checked, with every wrong or unknown part named, never passed over."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import shapely
import shapely.geometry

from infra.offline.scenes.orbit import FIRST_DAY, LAST_DAY
from infra.offline.services.stac_filter import Condition, read_filter, read_query

DEFAULT_LIMIT, MAX_LIMIT = 250, 1000
_KNOWN = frozenset(
    ("collections", "ids", "bbox", "intersects", "datetime", "limit", "query", "filter", "filter-lang", "filter_lang",
     "filter-crs", "token", "sortby")
)  # fmt: skip
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


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
