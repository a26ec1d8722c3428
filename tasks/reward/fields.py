"""Named values in a model's answer: proper JSON, nearly JSON, or lines such as `Latitude: 39.9`."""

import json
import re
from collections import deque

# What models call the fields, spelled without case, spaces and punctuation.
_NAMES = {
    "lat": ("lat", "latitude"),
    "lon": ("lon", "lng", "long", "longitude"),
    "country": ("country", "countryname", "nation"),
    "region": ("region", "state", "province", "provinceorstate", "stateorprovince", "stateprovince", "admin1"),
    "city": ("city", "town", "cityname", "place"),
    "address": ("finalanswer", "address"),
}
_FIELD = {spelling: field for field, spellings in _NAMES.items() for spelling in spellings}
_MAX_NODES = 200  # an answer has a few fields; a flood of nested objects is no answer

_LABEL = "latitude|longitude|lat|long|lon|lng|country name|country|province_or_state|province|state|region|city|town"
_KEY = re.compile(
    # any quoted key, so that a value ends where an unknown key begins
    r"[\"'](?P<quoted>[A-Za-z][A-Za-z0-9_ ]{0,40})[\"']\s{0,4}[:=]"
    # a known label, in a sentence or at a line's start, with or without its unit
    rf"|(?<![A-Za-z0-9_\"'])(?P<bare>{_LABEL})(?:\s{{0,2}}\([^()\n]{{0,30}}\))?\s{{0,4}}"
    r"(?:[:=]|(?:(?:is|of)\s{1,2})?(?=[-+]?\d))",
    re.IGNORECASE,
)
_QUOTED_VALUE = re.compile(
    r"\s{0,20}(?:\"((?:[^\"\\\n]|\\.){0,500})\"|'((?:[^'\\\n]|\\.){0,500})')\s{0,20}(?=[,;}\n]|$)"
)

Fields = dict[str, object]
_DECODER = json.JSONDecoder()


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
    """The known fields of a JSON object, outer ones first; None if the text is not JSON."""
    try:
        root = json.loads(text, parse_int=float)
    except (ValueError, RecursionError):
        return None
    found: Fields = {}
    queue, seen = deque([root]), 0
    while queue and seen < _MAX_NODES:
        node = queue.popleft()
        seen += 1
        if isinstance(node, dict):
            for key, value in node.items():
                field = field_of(key)
                if field is not None:
                    found.setdefault(field, value)
                elif isinstance(value, dict):  # {"location": {"lat": ..}}; never lists, whose order means nothing here
                    queue.append(value)
    return found


def read_labels(text: str) -> tuple[Fields, bool]:
    """The fields labelled in loose text, and whether one coordinate was given two different values.

    Takes what `json` refuses: unquoted values, single quotes, trailing commas, missing braces.
    """
    found: Fields = {}
    ambiguous = False
    keys = list(_KEY.finditer(text))
    ends = [key.start() for key in keys[1:]] + [len(text)]
    for key, end in zip(keys, ends, strict=False):
        field = field_of(key["quoted"] or key["bare"])
        if field is None:
            continue
        value = _value(text, key.end(), end, field)
        if field in ("lat", "lon") and found.get(field, value) != value:
            ambiguous = True
        found.setdefault(field, value)
    return found, ambiguous


def field_of(key: str) -> str | None:
    """The field a key names, or None."""
    return _FIELD.get(re.sub(r"[\W_]", "", key).casefold()) if len(key) <= 60 else None


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
    line = text[start : min(end, start + 500)].lstrip(" \t").partition("\n")[0]
    if field in ("lat", "lon"):
        return line.strip()
    return line.partition("}")[0].strip(" \t\r,;\"'|")
