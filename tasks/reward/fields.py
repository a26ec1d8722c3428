"""Named values in a model's answer: proper JSON, nearly JSON, or lines such as `Latitude: 39.9`."""

import json
import re
from collections import deque
from itertools import islice
from typing import Any

from tasks.reward.spelling import plain_spelling

# What models call the fields, spelled without case, spaces and punctuation; `spelling.py` knows other scripts' words.
_NAMES = {
    "lat": ("lat", "latitude", "latitud", "latitudine", "breitengrad"),
    "lon": ("lon", "lng", "long", "longitude", "longitud", "longitudine", "längengrad"),
    "country": ("country", "countryname", "nation", "国家", "país", "pays", "land"),
    "region": (
        *("region", "state", "province", "provinceorstate", "stateorprovince", "stateprovince", "admin1"),
        *("administrativeregion", "stateregion", "provincestate", "省份"),
    ),
    "city": ("city", "town", "cityname", "place", "locality", "cityortown", "municipality", "城市", "ciudad", "ville"),
    "address": ("finalanswer", "address", "fulladdress"),
    "pair": (
        *("coordinates", "coordinate", "coords", "coord", "latlon", "latlng", "latlong", "latitudelongitude"),
        *("gps", "gpscoordinates", "geocoordinates", "point", "position", "geolocation"),
    ),
    "text": ("answer", "response", "output", "prediction", "result"),
    "riap": ("lonlat", "lnglat", "longlat", "longitudelatitude"),  # the pair with the longitude first
}
_FIELD = {spelling: field for field, spellings in _NAMES.items() for spelling in spellings}
_AROUND = re.compile(
    r"^(?:predicted|pred|estimated|estimate|est|final|approximate|approx|best|guess|guessed|gps|geo|decimal|center|centre)"
    r"|(?:degrees|degree|deg|decimal|dd|estimate|est|guess|value|wgs84)$"
)
_MAX_NODES = 200  # an answer has a few fields; a flood of nested objects is not an answer

_LABEL = (
    "latitude|latitudine|latitud|longitude|longitudine|longitud|lat|long|lon|lng|breitengrad|längengrad"
    "|country name|country|province_or_state|province/state|state/province|province|state|region|city|town"
)
_MEANWHILE = (
    r"approximately|approx[.]?|about|around|roughly|circa|ca[.]|estimated|near|is|of|at|are|was|value|coordinate"
)
_SIDE = "north|south|east|west"
_SIDE_BEFORE = re.compile(rf"(?:^|[^A-Za-z])({_SIDE})(?:ern)?[ \t]\Z", re.IGNORECASE)
_SIDE_ALONE = re.compile(rf"\s?(?:[NSEW]|{_SIDE})(?![A-Za-z])", re.IGNORECASE)
_KEY = re.compile(
    r"(?=[\"'lbcpsrt])(?:"  # rules out most positions at once
    # any quoted key, so that a value ends where an unknown key begins
    r"[\"']\s?(?P<quoted>[^\W\d_][\w ]{0,40})[\"']\s{0,4}[:=]"
    # a known label, in a sentence or at a line's start, with or without its unit
    rf"|(?<![A-Za-z0-9_\"'])(?P<bare>{_LABEL})"
    rf"(?:\s{{0,2}}\((?P<unit>[^()\n]{{0,30}})\)|\s(?P<side>{_SIDE})(?=\s?[:=]))?(?![A-Za-z]){{1}}[.]?\s{{0,4}}"
    rf"(?:[:=|~](?:\s{{0,2}}[:=|~>]){{0,3}}|(?:(?:{_MEANWHILE})\s{{1,2}}){{0,3}}~?(?=\s{{0,2}}[-+]?\s?[NSEW]?\s?[.]?\d)))",
    re.IGNORECASE,
)
_QUOTED_VALUE = re.compile(
    r"\s{0,20}(?:\"((?:[^\"\\\n]|\\.){0,500})\"|'((?:[^'\\\n]|\\.){0,500})')\s{0,20}(?=[,;}\n]|$)"
)

Fields = dict[str, object]
_DECODER = json.JSONDecoder()
CONFLICT = "conflict"  # a field that says: the object names several points


def object_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of every outermost `{...}` in one pass; a brace without partner belongs to none."""
    spans, begin = _proper_spans(text)
    opened: list[int] = []
    for match in re.compile(r"[{}]").finditer(text, begin):
        if match[0] == "{":
            opened.append(match.start())
        elif opened:
            start = opened.pop()
            while spans and spans[-1][0] > start:
                spans.pop()
            spans.append((start, match.end()))
    return spans


def _proper_spans(text: str) -> tuple[list[tuple[int, int]], int]:
    """The objects that are proper JSON, up to the first that is not, and where that search ended.

    Their strings may hold braces, which counting would mistake. One failure ends it: trying every brace is quadratic.
    """
    spans: list[tuple[int, int]] = []
    end = 0
    while (start := text.find("{", end)) >= 0:
        try:
            _, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            break
        spans.append((start, end))
    return spans, end


def read_json(text: str) -> Fields | None:
    """The known fields of a JSON object, outer ones first; None if the text is not JSON.

    Two points at the same depth are a `CONFLICT`; a deeper one beside an outer one is a detail.
    """
    try:
        root = json.loads(text, parse_int=float)
    except (ValueError, RecursionError):
        return None
    fields: Fields = {}
    depth_of: dict[str, int] = {}
    queue: deque[tuple[Any, int]] = deque([(root, 0)])
    seen = 0
    while queue and seen < _MAX_NODES:
        node, depth = queue.popleft()
        seen += 1
        if not isinstance(node, dict):
            continue
        geojson = str(node.get("type", "")).casefold() == "point"
        for key, value in node.items():
            field = field_of(key)
            if isinstance(value, dict) and (field is None or field not in ("lat", "lon")):
                queue.append((value, depth + 1))  # {"location": {"lat": ..}}; never lists, whose order means nothing
            elif field is not None:
                name = "riap" if field == "pair" and geojson else field
                if name not in fields:
                    fields[name], depth_of[name] = value, depth
                elif name in ("lat", "lon", "pair", "riap") and depth_of[name] == depth and fields[name] != value:
                    fields[CONFLICT] = True
    return fields


def read_labels(text: str) -> tuple[Fields, bool]:
    """The fields labelled in loose text, and whether one coordinate was given two different values.

    Takes what `json` refuses: unquoted values, single quotes, trailing commas, missing braces.
    """
    fields: Fields = {}
    keys = list(islice(_KEY.finditer(text), _MAX_NODES + 1))
    ambiguous = len(keys) > _MAX_NODES
    ends = [key.start() for key in keys[1:]] + [len(text)]
    for key, end in zip(keys, ends, strict=False):
        field = field_of(key["quoted"] or key["bare"])
        if field is None:
            continue
        value = _value(text, key.end(), end, field)
        if field in ("lat", "lon"):
            value = _on_side(value, text, key)
        if field in ("lat", "lon") and fields.get(field, value) != value:
            ambiguous = True
        fields.setdefault(field, value)
    return fields, ambiguous


def _on_side(value: str, text: str, key: re.Match[str]) -> str:
    """The value with the half of the Earth that its label names: `South latitude: 33.9`, `Longitude (W): 70.7`."""
    told = _SIDE_ALONE.match(key["side"] or key["unit"] or "")
    before = None if told else _SIDE_BEFORE.search(text[max(0, key.start() - 12) : key.start()])
    side = (told[0].strip() if told else before[1] if before else "")[:1].upper()
    # A sign that says the same, or a letter of its own, is the value's word.
    if not side or re.search(r"\d\D{0,6}[NSEW](?![A-Za-z])|^\s?[NSEW]\s?\d", value, re.IGNORECASE):
        return value
    return value if side in "SW" and re.match(r"\s?-", value) else f"{side} {value}"


def field_of(key: str) -> str | None:
    """The field a key names, or None."""
    if len(key) > 60:
        return None
    bare = re.sub(r"[\W_]", "", key if key.isascii() else plain_spelling(key)).casefold()
    return _FIELD.get(bare) or _FIELD.get(_AROUND.sub("", bare))


def _value(text: str, start: int, end: int, field: str) -> str:
    quoted = _QUOTED_VALUE.match(text, start, end)
    if quoted is not None:
        if quoted[1] is None:
            return quoted[2].replace("\\'", "'")
        try:
            return str(json.loads(f'"{quoted[1]}"'))
        except ValueError:  # an escape JSON does not know
            return quoted[1]
    # Only the line counts, and of a long line its head: a value is a number or a name.
    head = text[start : min(end, start + 500)]
    if field in ("lat", "lon"):
        return head.strip(" \t\r\n|").partition("\n")[0].strip()
    return head.lstrip(" \t").partition("\n")[0].partition("}")[0].strip(" \t\r,;\"'|")
