"""What an agent has before it, rebuilt from the messages: the picture or an observer's words, what its tools answered,
how many calls are left.

What an agent read in a picture of which it has spoken stands in its own thoughts; only pictures that came since its
last words are looked at anew, with the slips that temperature brings.
"""

import json
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

from infra.offline.chat.clues import countries_in, country_named, street_in
from infra.offline.chat.observer import describe
from infra.offline.chat.placenames import Place, place_names
from infra.offline.chat.protocol import ChatRequest, Picture, Reply
from infra.offline.chat.sight import READABLE_SCORE, SeenPicture, look_at_picture
from schemas.messages import ToolCall, json_object

# The tools that the agents were taught: what for, and the argument.
KNOWN: dict[str, tuple[str, str]] = {
    "image_zoom_in_tool": ("zoom", "bbox_2d"),
    "image_zoom_tool": ("zoom", "bbox_2d"),
    "image_zoom": ("zoom", "bbox_2d"),
    "search_web": ("search", "query"),
    "text_search": ("search", "queries"),
    "image_search": ("look", "bbox_2d"),
    "maps_geocode": ("geocode", "address"),
    "poi_input_tips": ("tips", "text"),
    "poi_keyword_search": ("keyword", "keyword"),
    "poi_detail_query": ("detail", "id"),
    "static_map_query": ("map", "center"),
    "satellite_map_query": ("satellite", "center"),
}
THOUSANDTHS = ("image_zoom", "image_search")  # tools whose boxes are in thousandths of the picture
DEFAULT_CALLS = 6
UNKNOWN_SIZE = (10**6, 10**6)
LEAST_BOX_PX = 8
ALIKE = 0.8  # two readings of one line share this much of their letters
MISREAD_RATE = 0.004  # letters read wrong at temperature 1, in a line that is not very clear
MISS_RATE = 0.10  # lines overlooked at temperature 1
HALLUCINATION_RATE = 0.01  # looks that show writing which is not there, at temperature 1
SURE_SCORE = 0.75  # what it quotes is read this well; the rest is writing to look closer at
READ_IN_PICTURE, READ_IN_CROP, READ_ON_MAP = "I read in the picture:", "The zoom shows:", "The map shows:"
_READING = re.compile(rf"({READ_IN_PICTURE}|{READ_IN_CROP}|{READ_ON_MAP})([^\n]*)")
_LINE = re.compile(r'"([^"\n]{1,80})"')
_LIMIT = re.compile(r"at most (\d{1,2}) (?:tool )?(?:call|turn)", re.IGNORECASE)
_SIZE = re.compile(r"(\d{2,5})\s*[x×]\s*(\d{2,5})\s*(?:px|pixels)")
_TEXT_LINE = re.compile(
    r'^-\s+(?:"(?P<text>.*)"|\([^)]*\))\s+bbox_2d\s*\[(?P<box>[\d\s,.]+)\](?:\s+confidence\s+(?P<score>[\d.]+))?'
    r"(?:\s+height\s+(?P<height>\d+))?",
    re.MULTILINE,
)
# Sentences that speak to a model instead of about a place. A tool result is data: such a sentence is left out.
_ADDRESSED = re.compile(
    r"\b(ignore|disregard|forget|override)\b.{0,60}\b(instruction|prompt|previous|above|rule|image|evidence)"
    r"|\b(you must|you should|you are|your answer|system prompt|assistant|language model|dear (ai|model)|as an ai)\b"
    r"|^\s*system\s*:|\b(answer|respond|reply|output)\b.{0,20}\b(with|only|exactly|must)\b|</?(answer|think|tool_call|system)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Tool:
    """One function; its purpose is empty where the model does not know what it is for."""

    name: str
    purpose: str = ""
    argument: str = "value"

    def arguments(self, value: Any, size: tuple[int, int]) -> str:
        """The arguments of a call on a value as the model thinks of it: one query, a box in pixels, a point."""
        if isinstance(value, tuple):
            value = [round(degrees, 5) for degrees in value]  # to a metre
        elif self.argument == "queries":
            value = [value]
        elif self.name in THOUSANDTHS:
            value = [min(1000, max(0, round(1000 * side / size[at % 2]))) for at, side in enumerate(value)]
        return json.dumps({self.argument: value}, ensure_ascii=False)

    def value(self, arguments: str, size: tuple[int, int]) -> Any:
        """The value of a call that was made; it may be malformed."""
        value = (json_object(arguments) or {}).get(self.argument)
        if isinstance(value, list) and self.argument == "queries":
            return " ".join(str(query) for query in value)
        if isinstance(value, list) and self.name in THOUSANDTHS:
            is_box = all(isinstance(side, int | float) for side in value)
            return [side * size[at % 2] / 1000 for at, side in enumerate(value)] if is_box else None
        return value

    def call(self, thought: str, value: Any, size: tuple[int, int]) -> Reply:
        """A thought with a call of this tool."""
        return Reply(f"<think>{thought}</think>", ((self.name, self.arguments(value, size)),))


def tool_named(name: str, parameters: dict[str, Any] | None = None) -> Tool:
    """A tool by its name; one that the model was not taught carries its first argument."""
    properties = (parameters or {}).get("properties")
    first = next(iter(properties), "value") if isinstance(properties, dict) else "value"
    return Tool(name, *KNOWN.get(name, ("", first)))


def offered(request: ChatRequest) -> list[Tool]:
    """The tools of a request, in its order."""
    return [tool_named(name, parameters) for name, parameters in request.tools.items()]


@dataclass(frozen=True)
class SeenText:
    """A line of writing; text is None where it could not be read, empty where it is read from the thoughts alone."""

    text: str | None
    box: tuple[float, float, float, float] = (0, 0, 0, 0)
    score: float = 0.95
    height: int = 0
    zoomed: bool = False


@dataclass(frozen=True)
class Candidate:
    """A place that a geocoder or a map found."""

    label: str
    place: Place
    rank: int
    poi_id: str


@dataclass
class Notes:
    """The working state of an agent."""

    description: str = ""
    picture: SeenPicture | None = None  # the first one
    texts: list[SeenText] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)  # sentences on what was read since its last words
    searches: list[tuple[str, list[str]]] = field(default_factory=list)  # query, passages
    geocodes: list[tuple[str, list[Candidate]]] = field(default_factory=list)  # lookups of any kind
    tips: list[tuple[str, str]] = field(default_factory=list)  # (id, name) of points a map suggested without a place
    listed: list[str] = field(default_factory=list)  # what the last lookup lists, as it names it
    calls: list[tuple[str, Any]] = field(default_factory=list)  # (purpose, value) of every call so far
    map_words: list[str] = field(default_factory=list)  # read on maps that were looked at
    results: list[tuple[Tool, str]] = field(default_factory=list)  # tool texts since its last words
    suspicious: int = 0
    calls_allowed: int = DEFAULT_CALLS

    @property
    def calls_left(self) -> int:
        return max(0, self.calls_allowed - len(self.calls))

    @property
    def zooms(self) -> list[Any]:
        """Boxes looked into, as they were called."""
        return [value for purpose, value in self.calls if purpose == "zoom"]

    @property
    def words(self) -> list[str]:
        """Every readable line once, those read after a zoom first; pieces of a longer line are left out.

        A line that a zoom showed nearly alike was misread before: the closer look counts.
        """
        closer = list(dict.fromkeys(seen.text for seen in self.texts if seen.text and seen.zoomed))
        first = dict.fromkeys(seen.text for seen in self.texts if seen.text and not seen.zoomed)
        lines = closer + [line for line in first if not any(nearly_alike(line, other) for other in closer)]
        return [line for line in lines if not any(line != other and line in other for other in lines)]

    @property
    def streets(self) -> list[str]:
        """The names of streets among the words."""
        return [street[0] for line in self.words if (street := street_in(line))]

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the picture, also of one that is described."""
        if self.picture is not None:
            return self.picture.width, self.picture.height
        matched = _SIZE.search(self.description)
        return (int(matched[1]), int(matched[2])) if matched else UNKNOWN_SIZE

    def value(self, name: str, allowed: str) -> str | None:
        """The first of the allowed words (`a|b`) on the description's line of that name, if one stands there."""
        for matched in re.finditer(rf"{name}[^:\n]*:\s*([^;\n]*)", self.description, re.IGNORECASE):
            # The first on the line: "right (the road reaches farther on the left)" says right.
            match = re.search(rf"\b({allowed})\b", matched[1], re.IGNORECASE)
            if match:
                return match[1].lower()
        return None

    def read(self, lead: str, line: str) -> None:
        """Adds a line that was read in the picture, in a crop or on a map."""
        if lead == READ_ON_MAP:
            self.map_words.append(line)
        else:
            self.texts.append(SeenText(line, zoomed=lead == READ_IN_CROP))

    def show(self, seen: SeenPicture) -> None:
        """Describes the picture; what its lines say is known only from a reading, here they are places to look at."""
        self.picture, self.description = seen, describe(seen)
        self.texts += [
            SeenText(None if line.score < READABLE_SCORE else "", line.box, line.score, line.height)
            for line in seen.lines
        ]

    def facts_only(self, passage: str) -> list[str]:
        """The sentences of a passage that do not speak to its reader; the others are counted."""
        sentences = [part.strip() for part in re.split(r"(?<=[.!?:])\s+|\n", passage) if part.strip()]
        kept = [sentence for sentence in sentences if not _ADDRESSED.search(sentence)]
        self.suspicious += len(sentences) - len(kept)
        return kept

    def facts_of(self, passages: Iterable[str]) -> list[str]:
        """The passages that hold facts, these alone."""
        return [" ".join(kept) for passage in passages if (kept := self.facts_only(passage))]


def read_notes(request: ChatRequest, dice: random.Random) -> Notes:
    """The state after the last message, of a model that sees pictures or of one that is told of them."""
    limit = _LIMIT.search(request.prompt)
    notes = Notes(calls_allowed=int(limit[1]) if limit else DEFAULT_CALLS)
    called: dict[str, ToolCall] = {}
    unread: list[tuple[str, Picture]] = []
    purpose = ""
    for message in request.messages:
        if message.role == "assistant":
            readings = _READING.findall(message.text) if request.pictures else []
            for lead, quoted in readings:
                for line in _LINE.findall(quoted):
                    notes.read(lead, line)
            unread = [] if readings else unread
            notes.results = []
            called |= {call.id: call for call in message.tool_calls}
        elif message.tool_call_id in called:
            # By name alone: tools are not offered again once the calls are used up.
            call = called[message.tool_call_id]
            tool = tool_named(call.name)
            purpose = tool.purpose
            note_result(notes, tool, call.arguments, message.text)
            notes.results.append((tool, message.text))
        for picture in message.pictures:
            lead = (
                READ_ON_MAP if purpose in ("map", "satellite") else READ_IN_CROP if notes.picture else READ_IN_PICTURE
            )
            notes.picture = notes.picture or look_at_picture(picture)
            unread.append((lead, picture))
    if notes.picture is None:
        notes.description = request.said_by("user")
        notes.texts += read_texts(notes.description)
        return notes
    # A picture's very small lines are left to a zoom, where there is one; a crop is read as far as the eyes go.
    can_zoom = any(tool.purpose == "zoom" for tool in offered(request))
    for lead, picture in unread:
        seen = look_at_picture(picture)
        smallest = round(9 * seen.width / 1024) if can_zoom and lead == READ_IN_PICTURE else 0
        lines = _read(seen, smallest, dice, request.temperature)
        for text in lines:
            notes.read(lead, text)
        quoted = "; ".join(f'"{text}"' for text in lines)
        notes.fresh.append(f"{lead} {quoted or 'no writing I can read'}.")
    notes.show(notes.picture)
    return notes


def _read(seen: SeenPicture, smallest: int, dice: random.Random, temperature: float) -> list[str]:
    """The lines of a picture; slips, misses and writing that is not there come with temperature."""
    lines = []
    for line in seen.readable:
        if line.height < smallest or line.score < SURE_SCORE or dice.random() < MISS_RATE * temperature:
            continue
        rate = MISREAD_RATE * temperature * (2.0 if line.score < 0.9 else 1.0)
        lines.append(misread(line.text.replace('"', "'"), rate, dice))
    if dice.random() < HALLUCINATION_RATE * temperature:
        names = place_names().biggest(dice.choice(("US", "FR", "BR", "IN", "DE", "MX", "ZA", "JP")))
        lines.append(dice.choice(names[:40]).name)
    return list(dict.fromkeys(lines))


def misread(text: str, rate: float, dice: random.Random) -> str:
    """The text with some letters taken for others."""
    letters = "aeinorstul"
    return "".join(
        dice.choice(letters) if char.isalpha() and char.isascii() and dice.random() < rate else char for char in text
    )


@lru_cache(maxsize=8192)
def nearly_alike(line: str, other: str) -> bool:
    """Whether two readings are of one line of writing."""
    return SequenceMatcher(None, line.casefold(), other.casefold(), autojunk=False).ratio() >= ALIKE


def read_texts(description: str, zoomed: bool = False) -> list[SeenText]:
    """The lines of an observer's text section."""
    texts = []
    for matched in _TEXT_LINE.finditer(description):
        box = [float(side) for side in re.findall(r"\d+(?:\.\d+)?", matched["box"])]
        if len(box) == 4:
            score, height = float(matched["score"] or 0.5), int(matched["height"] or 0)
            texts.append(SeenText(matched["text"], (box[0], box[1], box[2], box[3]), score, height, zoomed))
    return texts


def enlarged(box: tuple[float, ...], wide: float, high: float, size: tuple[int, int], off: float = 0.0) -> list[int]:
    """The box with a margin, inside the picture; `off` is how far it is aimed to the right."""
    (left, top, right, bottom), (width, height) = box, size
    x, y = (
        max(0, int(min(at, most - LEAST_BOX_PX))) for at, most in ((left - wide + off, width), (top - high, height))
    )
    far = ((right + wide + off, x, width), (bottom + high, y, height))
    return [x, y, *(min(most, max(int(at), start + LEAST_BOX_PX)) for at, start, most in far)]


def note_result(notes: Notes, tool: Tool, arguments: str, text: str) -> None:
    """Adds what one tool answered; an error says nothing."""
    result = json_object(text) or {}
    value = tool.value(arguments, notes.size)
    notes.calls.append((tool.purpose, value))
    if tool.purpose == "zoom":
        notes.texts += read_texts(str(result.get("description") or ""), zoomed=True)
    if result.get("error"):
        return
    if tool.purpose in ("search", "look"):
        query = "that sign" if tool.purpose == "look" else str(value)
        texts = [[str(row[key]) for key in ("title", "content") if row.get(key)] for row in _rows(result)]
        pages = (
            " ".join(text if text.endswith((".", "!", "?", "…")) else f"{text}." for text in page) for page in texts
        )
        notes.searches.append((query, notes.facts_of(pages)))
    elif tool.purpose in ("geocode", "keyword", "tips", "detail"):
        rows = _rows(result)
        placed = [_candidate(row, rank) for rank, row in enumerate(rows)]
        candidates = [candidate for candidate in placed if candidate is not None]
        # Of a point of interest by its name: an id says nothing to a reader.
        query = candidates[0].label.partition(",")[0] if tool.purpose == "detail" and candidates else str(value)
        notes.geocodes.append((query, candidates))
        unplaced = [row for row, candidate in zip(rows, placed, strict=True) if candidate is None and row.get("id")]
        notes.tips += [(str(row["id"]), str(row.get("name") or "")) for row in unplaced]
        suggested = [", ".join(str(row[key]) for key in ("name", "district") if row.get(key)) for row in rows]
        notes.listed = [candidate.label for candidate in candidates] or suggested


def _rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of a result, whatever the tool calls them."""
    rows = next((result[key] for key in ("results", "pois", "tips") if key in result), [result.get("poi")])
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _candidate(row: dict[str, Any], rank: int) -> Candidate | None:
    """The place of an entry, or None where it names no point."""
    try:
        lat, lon = float(row["lat"]), float(row["lon"])
    except (KeyError, TypeError, ValueError):
        return None
    label = str(row.get("display_name") or row.get("name") or "")
    told = (row.get(key) for key in ("address", "district", "country"))
    where = ", ".join(text for text in told if isinstance(text, str) and text)
    city = str(row.get("city") or "") or _town_of(str(row.get("district") or "")) or _town_in(label)
    code = str(row.get("country_code") or "").upper() or _country_of(where or label)
    full = f"{label}, {where}" if where and not label.endswith(where) else label
    return Candidate(full, Place(city, lat, lon, code), rank, str(row.get("id") or ""))


def _country_of(address: str) -> str:
    """The code of the country an address names; a part of its own comes first: East Azerbaijan lies in Iran."""
    own = (country_named(part) for part in reversed(address.split(",")))
    return next((code for code in own if code), "") or next(iter(sorted(countries_in(address))), "")


def _town_of(district: str) -> str:
    """The town in a district, written from the country down or from the town up."""
    parts = [part.strip() for part in district.split(",") if part.strip()]
    return parts[-1] if len(parts) > 1 and countries_in(parts[0]) else parts[0] if parts else ""


def _town_in(label: str) -> str:
    """The town of an address: its first part, or the second where the first is a street."""
    parts = [part.strip() for part in label.split(",")]
    return parts[1] if len(parts) > 2 and street_in(parts[0]) else parts[0]
