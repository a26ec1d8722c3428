"""The tools a request offers, and what the planner has before it: the description, what the tools answered, how many
calls are left."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

from infra.offline.chat.clues import countries_in, is_country, street_in
from infra.offline.chat.protocol import ChatRequest, ToolCall

ZOOM, SEARCH, GEOCODE = "zoom", "search", "geocode"
TIPS, KEYWORD, DETAIL, MAP, SATELLITE = "tips", "keyword", "detail", "map", "satellite"
PURPOSES = (ZOOM, SEARCH, GEOCODE, TIPS, KEYWORD, DETAIL, MAP, SATELLITE)

# Read from name and description; the first that fits decides, so the narrow ones stand first.
_PURPOSE_WORDS = (
    (ZOOM, r"zoom|crop|bbox"),
    (SATELLITE, r"satellite|aerial"),
    (DETAIL, r"detail"),
    (TIPS, r"tips|autocomplete|suggest|typeahead"),
    (MAP, r"static_?map|map_(?:query|image|picture)|street_?map"),
    (GEOCODE, r"geocod|coordinates of"),
    (KEYWORD, r"poi|keyword|nearby|places?_search"),
    (SEARCH, r"search|web|browse"),
)
_MAIN = {
    ZOOM: r"bbox|box|region|area|rect",
    SEARCH: r"query|q$|keywords?|text|question",
    GEOCODE: r"address|query|place|location|name",
    TIPS: r"text|keywords?|query|input|prefix",
    KEYWORD: r"keywords?|query|text|name",
    DETAIL: r"id$|poi",
    MAP: r"cent(?:er|re)|location|point|coord|lat",
    SATELLITE: r"cent(?:er|re)|location|point|coord|lat",
}
DEFAULT_CALLS = 6
ALIKE = 0.8  # two readings of one line share this much of their letters
_NUMBER_WORDS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "ten": 10}
_LIMIT = re.compile(
    rf"(?:at most|no more than|up to|maximum(?: of)?|max\.?|limit(?: of)?)\s+(\d{{1,2}}|{'|'.join(_NUMBER_WORDS)})\s+"
    r"(?:tool[ -]?|function |external )?(?:call|use|invocation|step|turn)s?",
    re.IGNORECASE,
)
_TEXT_LINE = re.compile(
    r'^-\s+(?:"(?P<text>.*)"|\([^)]*\))\s+bbox_2d\s*\[(?P<box>[\d\s,.]+)\](?:\s+confidence\s+(?P<score>[\d.]+))?'
    r"(?:\s+height\s+(?P<height>\d+))?",
    re.MULTILINE,
)
_QUOTED = re.compile(r'["“”«»]([^"“”«»\n]{2,80})["“”«»]')
# Sentences that speak to a model instead of about a place. A tool result is data: such a sentence is left out.
_ADDRESSED = re.compile(
    r"\b(ignore|disregard|forget|override)\b.{0,60}\b(instruction|prompt|previous|above|rule|image|evidence)"
    r"|\b(you must|you should|you are|your answer|system prompt|assistant|language model|dear (ai|model)|as an ai)\b"
    r"|^\s*system\s*:|\b(answer|respond|reply|output)\b.{0,20}\b(with|only|exactly|must)\b|</?(answer|think|tool_call|system)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Tool:
    """One offered function."""

    name: str
    purpose: str  # one of PURPOSES, or "" where the model does not understand what it is for
    parameters: Mapping[str, Any]

    def arguments(self, value: Any) -> dict[str, Any]:
        """The arguments that carry the one value the purpose needs, named and typed as the schema says."""
        properties = self.parameters.get("properties")
        named: dict[str, Any] = properties if isinstance(properties, dict) else {}
        listed = self.parameters.get("required")
        required = [str(name) for name in listed] if isinstance(listed, list) else []
        main = next((name for name in required if name in named), next(iter(named), "value"))
        main = next((name for name in named if _fits_purpose(name, self.purpose)), main)
        values = {main: _shaped(value, named.get(main))}
        for name in required:
            if name not in values and name in named:
                values[name] = _default(named[name])
        return values

    def value_in(self, arguments: Mapping[str, Any]) -> Any:
        """The value an earlier call of this tool carried."""
        for name, value in arguments.items():
            if _fits_purpose(name, self.purpose):
                return value
        return next(iter(arguments.values()), None)


def offered(request: ChatRequest) -> dict[str, Tool]:
    """The tools of a request by name."""
    tools = {}
    for name, parameters in request.tools.items():
        about = request.tool_notes.get(name, "")
        tools[name] = Tool(name, purpose_of(name, about, parameters), parameters)
    return tools


def purpose_of(name: str, about: str, parameters: Mapping[str, Any]) -> str:
    """What a tool is for, by its name, its parameters' names, then its description."""
    properties = parameters.get("properties")
    fields = " ".join(properties) if isinstance(properties, dict) else ""
    for text in (name, fields, about):
        for purpose, words in _PURPOSE_WORDS:
            if re.search(words, text, re.IGNORECASE):
                return purpose
    return ""


def _fits_purpose(name: str, purpose: str) -> bool:
    return purpose in _MAIN and re.search(_MAIN[purpose], name, re.IGNORECASE) is not None


def _shaped(value: Any, schema: Any) -> Any:
    """The value in the type the schema wants: a point as an array or as "lat,lon"."""
    if not isinstance(value, tuple):
        return value
    pair = [round(float(part), 5) for part in value]
    as_array = isinstance(schema, dict) and schema.get("type") == "array"
    return pair if as_array else ",".join(str(part) for part in pair)


def _default(schema: Any) -> Any:
    """A value for a required parameter beside the main one."""
    described = schema if isinstance(schema, dict) else {}
    if "default" in described:
        return described["default"]
    options = described.get("enum")
    if isinstance(options, list) and options:
        return options[0]
    kinds = {"integer": 15, "number": 15.0, "boolean": False, "array": [], "object": {}}
    return kinds.get(str(described.get("type")), "")


@dataclass(frozen=True)
class SeenText:
    """A line of the observer's text section; text is None where it could not be read."""

    text: str | None
    box: tuple[float, float, float, float]
    score: float
    height: int
    zoomed: bool = False


@dataclass
class Candidate:
    """A geocoder's answer."""

    label: str
    lat: float
    lon: float
    country: str = ""
    city: str = ""
    asked: str = ""
    rank: int = 0
    poi_id: str = ""


@dataclass
class Notes:
    description: str = ""
    texts: list[SeenText] = field(default_factory=list)
    zooms: list[Any] = field(default_factory=list)  # boxes looked into, as they were called
    searches: list[tuple[str, list[str]]] = field(default_factory=list)  # query, passages
    geocodes: list[tuple[str, list[Candidate]]] = field(default_factory=list)  # lookups of any kind: asked, found
    tips: list[tuple[str, str]] = field(default_factory=list)  # (id, name) of points a map suggested without a place
    listed: list[str] = field(default_factory=list)  # what the last lookup lists, as it names it
    asked: set[tuple[str, str]] = field(default_factory=set)  # (purpose, value) of every call so far
    map_words: list[str] = field(default_factory=list)  # read on maps that were looked at
    results: list[tuple[Tool, str]] = field(default_factory=list)  # tool texts since its last words
    failed: int = 0
    suspicious: int = 0
    calls_made: int = 0
    calls_allowed: int = DEFAULT_CALLS

    @property
    def calls_left(self) -> int:
        return max(0, self.calls_allowed - self.calls_made)

    @property
    def words(self) -> list[str]:
        """Every readable line once, those read after a zoom first; pieces of a longer line are left out.

        A line that a zoom showed nearly alike was misread before: the closer look counts.
        """
        closer = list(dict.fromkeys(seen.text for seen in self.texts if seen.text and seen.zoomed))
        first = dict.fromkeys(seen.text for seen in self.texts if seen.text and not seen.zoomed)
        lines = closer + [line for line in first if not any(nearly_alike(line, other) for other in closer)]
        return [line for line in lines if not any(line != other and line in other for other in lines)]

    def value(self, name: str, allowed: tuple[str, ...]) -> str | None:
        """The first of the allowed words on the description's line of that name, if one stands there."""
        for matched in re.finditer(rf"{name}[^:\n]*:\s*([^;\n]*)", self.description, re.IGNORECASE):
            # The first on the line: "right (the road reaches farther on the left)" says right.
            match = re.search(rf"\b({'|'.join(allowed)})\b", matched.group(1), re.IGNORECASE)
            if match:
                return match.group(1).lower()
        return None

    def size(self) -> tuple[int, int] | None:
        matched = re.search(r"(\d{2,5})\s*[x×]\s*(\d{2,5})\s*(?:px|pixels)", self.description)
        return (int(matched.group(1)), int(matched.group(2))) if matched else None


def read_notes(request: ChatRequest) -> Notes:
    """The planner's working state, rebuilt from the messages alone."""
    notes = Notes(calls_allowed=calls_allowed(request))
    notes.description = "\n".join(m.text for m in request.messages if m.role == "user")
    notes.texts = read_texts(notes.description)
    calls: dict[str, ToolCall] = {}
    tools = offered(request)
    for message in request.messages:
        if message.role == "assistant":
            notes.results = []
        for call in message.tool_calls:
            calls[call.id] = call
            notes.calls_made += 1
        if message.role == "tool" and message.tool_call_id in calls:
            call = calls[message.tool_call_id]
            note_result(notes, tool_of(call.name, tools), call.parsed(), message.text)
            notes.results.append((tool_of(call.name, tools), message.text))
    return notes


@lru_cache(maxsize=8192)
def nearly_alike(line: str, other: str) -> bool:
    """Whether two readings are of one line of writing."""
    return SequenceMatcher(None, line.casefold(), other.casefold(), autojunk=False).ratio() >= ALIKE


def tool_of(name: str, tools: dict[str, Tool]) -> Tool:
    """The tool an earlier call meant; tools are not offered again once the calls are used up."""
    return tools.get(name) or Tool(name, purpose_of(name, "", {}), {})


def calls_allowed(request: ChatRequest) -> int:
    match = _LIMIT.search(request.system) or next(
        (m for message in request.messages if message.role == "user" and (m := _LIMIT.search(message.text))), None
    )
    if not match:
        return DEFAULT_CALLS
    word = match.group(1).lower()
    return _NUMBER_WORDS.get(word) or int(word)


def read_texts(description: str, zoomed: bool = False) -> list[SeenText]:
    """The lines of a description's text section; quoted words where it was written in another form."""
    texts = []
    for matched in _TEXT_LINE.finditer(description):
        sides = [float(part) for part in re.findall(r"\d+(?:\.\d+)?", matched.group("box"))]
        if len(sides) == 4:
            box = (sides[0], sides[1], sides[2], sides[3])
            score = float(matched.group("score") or 0.5)
            texts.append(SeenText(matched.group("text"), box, score, int(matched.group("height") or 0), zoomed))
    if texts:
        return texts
    return [SeenText(m.group(1), (0, 0, 0, 0), 0.8, 0, zoomed) for m in _QUOTED.finditer(description)]


def note_result(notes: Notes, tool: Tool, arguments: dict[str, Any], text: str) -> None:
    """Adds what one tool answered; an error is counted and says nothing."""
    parsed, value = _parse(text), tool.value_in(arguments)
    notes.asked.add((tool.purpose, json.dumps(value) if isinstance(value, list | dict) else str(value)))
    if tool.purpose == ZOOM:
        notes.zooms.append(value)
    if isinstance(parsed, dict) and parsed.get("error"):
        notes.failed += 1
        return
    if tool.purpose == ZOOM:
        described = parsed.get("description") if isinstance(parsed, dict) else text if parsed is None else None
        notes.texts += read_texts(described if isinstance(described, str) else "", zoomed=True)
    elif tool.purpose == SEARCH:
        passages = _passages(parsed, text)
        clean = [" ".join(kept) for kept in (facts_only(p, notes) for p in passages) if kept]
        notes.searches.append((str(value or ""), clean))
    elif tool.purpose in (GEOCODE, KEYWORD, TIPS, DETAIL):
        query = str(value or "")
        candidates = _candidates(parsed, query)
        if tool.purpose == DETAIL and candidates:  # by its name: an id says nothing to a reader
            query = candidates[0].label.partition(",")[0]
        notes.geocodes.append((query, candidates))
        notes.tips += _tips(parsed)
        notes.listed = [candidate.label for candidate in candidates] or _suggested(parsed)


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


def _passages(parsed: Any, text: str) -> list[str]:
    rows = parsed.get("results") if isinstance(parsed, dict) else parsed
    if isinstance(rows, list):
        return [
            " ".join(_ended(str(row[key])) for key in ("title", "content", "snippet") if row.get(key))
            for row in rows
            if isinstance(row, dict)
        ]
    return [part for part in re.split(r"\n\s*\n|\n(?=\s*(?:\d+[.)]|[-*])\s)", text) if part.strip()]


def _ended(text: str) -> str:
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def facts_only(passage: str, notes: Notes) -> list[str]:
    kept = []
    for sentence in re.split(r"(?<=[.!?:])\s+|\n", passage):
        if _ADDRESSED.search(sentence):
            notes.suspicious += 1
        elif sentence.strip():
            kept.append(sentence.strip())
    return kept


def _tips(parsed: Any) -> list[tuple[str, str]]:
    """Suggestions that have an id and a name but no point yet."""
    rows = parsed.get("tips") if isinstance(parsed, dict) else None
    named = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [(str(row["id"]), str(row.get("name") or "")) for row in named if row.get("id") and _point(row) is None]


def _suggested(parsed: Any) -> list[str]:
    """The same as a reader would say them: each with where it is."""
    rows = parsed.get("tips") if isinstance(parsed, dict) else None
    named = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [", ".join(str(row[key]) for key in ("name", "district") if row.get(key)) for row in named]


def _candidates(parsed: Any, query: str) -> list[Candidate]:
    rows = parsed
    if isinstance(parsed, dict):
        if isinstance(parsed.get("poi"), dict):
            parsed = {"pois": [parsed["poi"]]}
        names = ("results", "candidates", "places", "pois", "tips")
        lists = (parsed[key] for key in names if isinstance(parsed.get(key), list))
        rows = next(lists, [parsed])
    candidates = []
    for rank, row in enumerate(rows if isinstance(rows, list) else []):
        if not isinstance(row, dict):
            continue
        place = row.get("geometry", {}).get("location", row) if isinstance(row.get("geometry"), dict) else row
        point = _point(place)
        if point is None:
            continue
        lat, lon = point
        listed = row.get("address")
        address: dict[str, Any] = listed if isinstance(listed, dict) else {}
        label = str(row.get("display_name") or row.get("formatted_address") or row.get("name") or "")
        city = next((str(address[k]) for k in ("city", "town", "village", "municipality") if address.get(k)), "")
        city = city or str(row.get("cityname") or row.get("city") or _town_of(row) or town_in(label))
        code = str(address.get("country_code") or row.get("country_code") or "").upper()
        told = (str(row[key]) for key in ("address", "district", "country") if isinstance(row.get(key), str))
        where = ", ".join(text for text in told if text)
        # The country is a part of its own: East Azerbaijan lies in Iran.
        parts = [part for part in (where or label).split(",") if len(countries_in(part)) == 1]
        code = code or next((country for part in parts[::-1] for country in countries_in(part) if is_country(part)), "")
        code = code or next(iter(sorted(countries_in(where or label))), "")
        whole = f"{label}, {where}" if where and not label.endswith(where) else label
        candidates.append(Candidate(whole, lat, lon, code, city, query, rank))
        candidates[-1].poi_id = str(row.get("id") or "")
    return candidates


def _town_of(row: dict[str, Any]) -> str:
    """The town in a district, written from the country down or from the town up."""
    parts = [part.strip() for part in str(row.get("district") or "").split(",") if part.strip()]
    if not parts:
        return ""
    return parts[-1] if countries_in(parts[0]) and len(parts) > 1 else parts[0]


def town_in(label: str) -> str:
    """The town of an address: its first part, or the second where the first is a street."""
    parts = [part.strip() for part in label.split(",")]
    return parts[1] if len(parts) > 2 and street_in(parts[0]) else parts[0]


def _point(place: dict[str, Any]) -> tuple[float, float] | None:
    """Latitude and longitude of a row, by name or as a map service writes them ("lon,lat")."""
    try:
        if "lat" not in place and "latitude" not in place and isinstance(place.get("location"), str):
            lon, lat = (float(part) for part in place["location"].split(","))
        else:
            lat = float(place["lat"] if "lat" in place else place["latitude"])
            lon = float(next(place[key] for key in ("lon", "lng", "longitude") if key in place))
    except (KeyError, StopIteration, TypeError, ValueError):
        return None
    return (lat, lon) if -90 <= lat <= 90 and -180 <= lon <= 180 else None
