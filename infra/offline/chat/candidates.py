"""Other agents' trajectories as the verifier reads them: where each ends up, and what it says on the way."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from infra.offline.chat.clues import countries_in
from infra.offline.chat.notes import Notes, facts_only
from infra.offline.chat.placenames import place_names
from infra.offline.chat.protocol import ChatRequest
from infra.offline.facts import countries
from infra.offline.gazetteer import gazetteer

MAX_CANDIDATES = 32
MAX_CHARS, MAX_PASSAGES = 40_000, 80  # of one trajectory; what comes before or after is not read
MAX_NAME = 120

_HEADING = re.compile(
    r"^[ \t>#*\[(=-]{0,8}(?:candidate|trajectory|agent|sample|solution|response|attempt|rollout|answer|path)s?"
    r"(?:[ \t]+(?:answer|trajectory|response|agent|solution))?[ \t]*(?:#|no\.?|number)?[ \t]*_?(?:\d{1,3}|[A-H])\b",
    re.IGNORECASE | re.MULTILINE,
)
_ANSWER = re.compile(r"<answer[^<>]{0,80}>(.*?)(?:</answer\s*>|\Z)", re.IGNORECASE | re.DOTALL)
_OBJECT = re.compile(r"\{[^{}]{2,2000}\}")
_LABELLED = re.compile(r"^[ \t*>-]*([A-Za-z][A-Za-z_ ]{2,24}?)[ \t*]*:[ \t*]*(\S[^\n]*)$", re.MULTILINE)
_PAIR = re.compile(r"(-?\d{1,2}\.\d+)\s*°?\s*,\s*(-?\d{1,3}\.\d+)")
_TAG = re.compile(r"</?(?:think|answer|tool_call|tool_response|candidate|trajectory)[^<>]{0,80}>", re.IGNORECASE)
_ROLE = re.compile(r"^\s*(?:assistant|tool|user|system|observer|planner|thought|action|observation)\s*:", re.I | re.M)
_LAT, _LON = ("lat", "latitude"), ("lon", "lng", "long", "longitude")
_REGION, _CITY = ("region", "state", "province", "admin1"), ("city", "place", "town", "location", "specific_location")


@dataclass(frozen=True)
class Candidate:
    """One trajectory that ends in a usable answer. Names are what it claims; `code` is where its point lies."""

    number: int  # as the request counts them, from 1
    lat: float
    lon: float
    code: str  # ISO 3166 alpha-2 of the country nearest to the point
    country: str
    region: str
    city: str
    passages: tuple[str, ...]  # what it says, less what it says to its reader
    suspicious: int  # sentences that speak to a model


def read_candidates(request: ChatRequest) -> tuple[list[Candidate], int]:
    """The candidates that can be placed on Earth, and how many trajectories were sent in all."""
    parts = _segments(request)[:MAX_CANDIDATES]
    found = [_read(number, part) for number, part in enumerate(parts, 1)]
    return [candidate for candidate in found if candidate is not None], len(parts)


def _segments(request: ChatRequest) -> list[str]:
    """The text of each trajectory: by headings, else by answer blocks, else by JSON objects with a latitude."""
    text = "\n\n".join(m.text for m in request.messages if m.role not in ("system", "developer") and m.text)
    heads = [m.start() for m in _HEADING.finditer(text)]
    if heads:
        parts = [text[a:b] for a, b in zip(heads, [*heads[1:], len(text)], strict=True)]
        # "Candidate 1 ... Answer 1: ..." is one trajectory with two headings: what has no end belongs to the next.
        joined: list[str] = []
        for part in parts:
            if joined and _last_answer(joined[-1]) is None and part.lstrip(" \t>#*[(=-").lower().startswith("answer"):
                joined[-1] += part
            else:
                joined.append(part)
        return joined
    for pattern in (_ANSWER, _OBJECT):
        ends = [m.end() for m in pattern.finditer(text) if _fields(m.group(m.lastindex or 0))]
        if ends:
            return [text[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    return []


def _last_answer(part: str) -> dict[str, Any] | None:
    """What a trajectory finally answers: its last answer block, or without one its last object with a place."""
    blocks = [m.group(1) for m in _ANSWER.finditer(part)]
    if blocks:
        return _fields(blocks[-1])
    objects = [fields for m in _OBJECT.finditer(part) if (fields := _fields(m.group()))]
    return objects[-1] if objects else None


def _fields(text: str) -> dict[str, Any] | None:
    """The place a text gives: JSON, labelled lines, a pair of coordinates, or `Country; Region; Place`."""
    for matched in reversed(list(_OBJECT.finditer(text))):
        try:
            value = json.loads(matched.group())
        except (json.JSONDecodeError, RecursionError):
            continue
        if isinstance(value, dict) and (found := _placed(value)):
            return found
    pair = _PAIR.search(text)
    point = _point(pair.group(1), pair.group(2)) if pair else None
    found = _placed({label.replace(" ", "_"): line.strip(" \t*°") for label, line in _LABELLED.findall(text)})
    if found or point:
        found = found or {"point": None, "country": "", "region": "", "city": ""}
        return {**found, "point": found["point"] or point}
    levels = [level.strip() for level in text.strip().split(";")]
    if 2 <= len(levels) <= 4 and len(text) < 300 and countries_in(levels[0]):
        return {"point": None, "country": levels[0], "region": levels[1], "city": (levels[2:] or [""])[0]}
    return None


def _placed(value: dict[str, Any]) -> dict[str, Any] | None:
    """Point and names of an answer by its fields, if it has any of them."""
    fields = {str(key).lower(): item for key, item in value.items()}
    point = _point(_first(fields, _LAT), _first(fields, _LON))
    names = {"country": _first(fields, ("country",)), "region": _first(fields, _REGION), "city": _first(fields, _CITY)}
    has_name = any(isinstance(name, str) and name for name in names.values())
    return {"point": point, **names} if point or has_name else None


def _read(number: int, part: str) -> Candidate | None:
    fields = _last_answer(part)
    if fields is None:
        return None
    country, region, city = (_name(fields[level]) for level in ("country", "region", "city"))
    point = fields["point"] or _recall(country, city)
    if point is None:
        return None
    lat, lon = point
    row, _ = gazetteer().nearest(lat, lon)[0]
    notes = Notes()
    body = _ROLE.sub("\n", _TAG.sub("\n", _ANSWER.sub("\n", part[-MAX_CHARS:])))
    lines = [line for line in body.splitlines() if line.strip()][:MAX_PASSAGES]
    passages = tuple(" ".join(kept) for kept in (facts_only(line, notes) for line in lines) if kept)
    code = str(gazetteer().country[row])
    return Candidate(number, lat, lon, code, country, region, city, passages, notes.suspicious)


def _recall(country: str, city: str) -> tuple[float, float] | None:
    """Where a place is that was named without coordinates."""
    lands = countries_in(country)
    for match in place_names().named(city) if city else ():
        if not lands or match.place.country in lands:
            return match.place.lat, match.place.lon
    for code in sorted(lands):
        for place in place_names().biggest(code)[:1]:
            return place.lat, place.lon
    return None


def _first(fields: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if fields.get(name) not in (None, "")), "")


def _point(lat: Any, lon: Any) -> tuple[float, float] | None:
    try:
        point = float(lat), float(lon)
    except (TypeError, ValueError):
        return None
    inside = all(math.isfinite(part) for part in point) and abs(point[0]) <= 90 and abs(point[1]) <= 180
    return point if inside else None


def _name(value: Any) -> str:
    """A name as data: one short line without mark-up."""
    return " ".join(re.sub(r"[<>{}]", " ", value).split())[:MAX_NAME] if isinstance(value, str) else ""


def country_label(candidate: Candidate) -> str:
    """The country's usual name; the point decides where the claim names another."""
    known = countries().get(candidate.code)
    if candidate.code in countries_in(candidate.country) or known is None:
        return candidate.country or candidate.code
    return known.name
