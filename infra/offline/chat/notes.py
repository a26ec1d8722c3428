"""What the planner has before it: the description, what the tools answered, how many calls are left."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from infra.offline.chat.protocol import ChatRequest, Message, ToolCall

DEFAULT_CALLS = 6
ZOOM, SEARCH, GEOCODE = "image_zoom_in_tool", "search_web", "maps_geocode"

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
    r"|\b(answer|respond|reply|output)\b.{0,20}\b(with|only|exactly|must)\b|</?(answer|think|tool_call|system)\b",
    re.IGNORECASE,
)


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


@dataclass
class Notes:
    description: str = ""
    texts: list[SeenText] = field(default_factory=list)
    zooms: list[ToolCall] = field(default_factory=list)
    searches: list[tuple[str, list[str]]] = field(default_factory=list)  # query, passages
    geocodes: list[tuple[str, list[Candidate]]] = field(default_factory=list)
    failed: int = 0
    suspicious: int = 0
    calls_made: int = 0
    calls_allowed: int = DEFAULT_CALLS

    @property
    def calls_left(self) -> int:
        return max(0, self.calls_allowed - self.calls_made)

    @property
    def words(self) -> list[str]:
        """Every readable line once, those read after a zoom first; pieces of a longer line are left out."""
        ordered = sorted(self.texts, key=lambda seen: not seen.zoomed)
        lines = list(dict.fromkeys(seen.text for seen in ordered if seen.text))
        return [line for line in lines if not any(line != other and line in other for other in lines)]

    def value(self, name: str, allowed: tuple[str, ...]) -> str | None:
        """The first of the allowed words on the description's line of that name, if one stands there."""
        for matched in re.finditer(rf"{name}[^:\n]*:\s*([^;\n]*)", self.description, re.IGNORECASE):
            # The first on the line: "right (the road reaches farther on the left)" says right.
            found = re.search(rf"\b({'|'.join(allowed)})\b", matched.group(1), re.IGNORECASE)
            if found:
                return found.group(1).lower()
        return None

    def size(self) -> tuple[int, int] | None:
        matched = re.search(r"(\d{2,5})\s*[x×]\s*(\d{2,5})\s*(?:px|pixels)", self.description)
        return (int(matched.group(1)), int(matched.group(2))) if matched else None


def take_notes(request: ChatRequest) -> Notes:
    """The planner's working state, rebuilt from the messages alone."""
    notes = Notes(calls_allowed=_allowed(request))
    notes.description = "\n".join(m.text for m in request.messages if m.role == "user")
    notes.texts = read_texts(notes.description)
    calls: dict[str, ToolCall] = {}
    for message in request.messages:
        for call in message.tool_calls:
            calls[call.id] = call
            notes.calls_made += 1
        if message.role == "tool" and message.tool_call_id in calls:
            _note_result(notes, calls[message.tool_call_id], message)
    return notes


def _allowed(request: ChatRequest) -> int:
    found = _LIMIT.search(request.system) or next(
        (m for message in request.messages if message.role == "user" and (m := _LIMIT.search(message.text))), None
    )
    if not found:
        return DEFAULT_CALLS
    word = found.group(1).lower()
    return _NUMBER_WORDS.get(word) or int(word)


def read_texts(description: str, zoomed: bool = False) -> list[SeenText]:
    """The lines of a description's text section; quoted words where it was written in another form."""
    found = []
    for matched in _TEXT_LINE.finditer(description):
        sides = [float(part) for part in re.findall(r"\d+(?:\.\d+)?", matched.group("box"))]
        if len(sides) == 4:
            box = (sides[0], sides[1], sides[2], sides[3])
            score = float(matched.group("score") or 0.5)
            found.append(SeenText(matched.group("text"), box, score, int(matched.group("height") or 0), zoomed))
    if found:
        return found
    return [SeenText(m.group(1), (0, 0, 0, 0), 0.8, 0, zoomed) for m in _QUOTED.finditer(description)]


def _note_result(notes: Notes, call: ToolCall, message: Message) -> None:
    text, parsed = message.text, _parse(message.text)
    if isinstance(parsed, dict) and parsed.get("error"):
        notes.failed += 1
        return
    if call.name == ZOOM:
        notes.zooms.append(call)
        described = parsed.get("description") if isinstance(parsed, dict) else None
        notes.texts += read_texts(described if isinstance(described, str) else text, zoomed=True)
    elif call.name == SEARCH:
        passages = _passages(parsed, text)
        clean = [" ".join(kept) for kept in (facts_only(p, notes) for p in passages) if kept]
        notes.searches.append((str(call.parsed().get("query", "")), clean))
    elif call.name == GEOCODE:
        asked = str(call.parsed().get("address", ""))
        notes.geocodes.append((asked, _candidates(parsed, asked)))


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


def _passages(parsed: Any, text: str) -> list[str]:
    rows = parsed.get("results") if isinstance(parsed, dict) else parsed
    if isinstance(rows, list):
        return [
            ". ".join(str(row[key]) for key in ("title", "content", "snippet") if row.get(key))
            for row in rows
            if isinstance(row, dict)
        ]
    return [part for part in re.split(r"\n\s*\n|\n(?=\s*(?:\d+[.)]|[-*])\s)", text) if part.strip()]


def facts_only(passage: str, notes: Notes) -> list[str]:
    kept = []
    for sentence in re.split(r"(?<=[.!?:])\s+|\n", passage):
        if _ADDRESSED.search(sentence):
            notes.suspicious += 1
        elif sentence.strip():
            kept.append(sentence.strip())
    return kept


def _candidates(parsed: Any, asked: str) -> list[Candidate]:
    rows = parsed
    if isinstance(parsed, dict):
        lists = (parsed[key] for key in ("results", "candidates", "places") if isinstance(parsed.get(key), list))
        rows = next(lists, [parsed])
    found = []
    for rank, row in enumerate(rows if isinstance(rows, list) else []):
        if not isinstance(row, dict):
            continue
        place = row.get("geometry", {}).get("location", row) if isinstance(row.get("geometry"), dict) else row
        try:
            lat = float(place["lat"] if "lat" in place else place["latitude"])
            lon = float(next(place[key] for key in ("lon", "lng", "longitude") if key in place))
        except (KeyError, StopIteration, TypeError, ValueError):
            continue
        if not (-90 <= lat <= 90 and -180 <= lon <= 180):
            continue
        listed = row.get("address")
        address: dict[str, Any] = listed if isinstance(listed, dict) else {}
        label = str(row.get("display_name") or row.get("formatted_address") or row.get("name") or "")
        city = next((str(address[k]) for k in ("city", "town", "village", "municipality") if address.get(k)), "")
        city = city or str(row.get("city") or label.split(",")[0])
        code = str(address.get("country_code") or row.get("country_code") or "").upper()
        found.append(Candidate(label, lat, lon, code, city, asked, rank))
    return found
