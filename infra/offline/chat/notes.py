"""What an agent has before it, rebuilt from the messages: the picture or an observer's words, what its tools answered,
how many calls are left.

A conversation's slips of reading, which temperature brings, are the same whenever a picture of it is looked at.
"""

import itertools
import json
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

from infra.offline.chat.clues import street_in
from infra.offline.chat.observer import describe
from infra.offline.chat.placenames import Place, place_names
from infra.offline.chat.protocol import ChatRequest, Reply
from infra.offline.chat.sight import SeenPicture, TextLine, look_at_picture
from schemas.messages import json_object

# What a tool is for, by the word in its name; the first that fits.
PURPOSES = {
    "zoom": "zoom", "image_search": "look", "search_web": "search", "text_search": "search", "geocode": "geocode",
    "tips": "tips", "keyword": "keyword", "detail": "detail", "static_map": "map", "satellite_map": "satellite",
}  # fmt: skip
THOUSANDTHS = ("image_zoom", "image_search")  # tools whose boxes are in thousandths of the picture
DEFAULT_CALLS = 6
UNKNOWN_SIZE = (10**6, 10**6)
LEAST_BOX_PX = 8
CLEAR_SCORE, SMALL_TEXT_PX, ZOOM_MARGIN = 0.9, 18, 0.6
ALIKE = 0.8  # two readings of one line share this much of their letters
MISREAD_RATE = 0.004  # letters read wrong at temperature 1, in a line that is not very clear
MISS_RATE = 0.10  # lines overlooked at temperature 1
HALLUCINATION_RATE = 0.01  # looks that show writing which is not there, at temperature 1
SURE_SCORE = 0.75  # what it quotes is read this well; the rest is writing to look closer at
READ_IN_PICTURE, READ_IN_CROP, READ_ON_MAP = "I read in the picture:", "The zoom shows:", "The map shows:"
_LIMIT = re.compile(r"at most (\d{1,2}) (?:tool )?(?:call|turn)", re.IGNORECASE)
_SIZE = re.compile(r"(\d{2,5})\s*[x×]\s*(\d{2,5})\s*(?:px|pixels)")
_TEXT_LINE = re.compile(
    r'^-\s+(?:"(?P<text>.*)"|\([^)]*\))\s+bbox_2d\s*\[(?P<box>[\d\s,.]+)\](?:\s+confidence\s+(?P<score>[\d.]+))?',
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
    argument: str = "value"  # the first one

    @property
    def purpose(self) -> str:
        return next((purpose for word, purpose in PURPOSES.items() if word in self.name), "")

    def call(self, thought: str, value: Any, size: tuple[int, int]) -> Reply:
        """A thought with a call on a value as the model thinks of it: one query, a box in pixels, a point."""
        if isinstance(value, tuple):
            value = [round(degrees, 5) for degrees in value]  # to a metre
        elif self.argument == "queries":
            value = [value]
        elif self.name in THOUSANDTHS:
            value = [min(1000, max(0, round(1000 * side / size[at % 2]))) for at, side in enumerate(value)]
        arguments = json.dumps({self.argument: value}, ensure_ascii=False)
        return Reply(f"<think>{thought}</think>", ((self.name, arguments),))

    def value(self, arguments: str, size: tuple[int, int]) -> Any:
        """The value of a call that was made; it may be malformed."""
        value = next(iter((json_object(arguments) or {}).values()), None)
        if isinstance(value, list) and all(isinstance(query, str) for query in value):
            return " ".join(value)
        if isinstance(value, list) and self.name in THOUSANDTHS:
            is_box = all(isinstance(side, int | float) for side in value)
            return [side * size[at % 2] / 1000 for at, side in enumerate(value)] if is_box else None
        return value


def offered(request: ChatRequest) -> list[Tool]:
    """The tools of a request, in its order."""
    properties = {name: parameters.get("properties") for name, parameters in request.tools.items()}
    return [Tool(name, next(iter(p), "value") if isinstance(p, dict) else "value") for name, p in properties.items()]


@dataclass(frozen=True)
class Candidate:
    """What a geocoder or a map found; a suggestion of a map has no point yet."""

    label: str
    place: Place | None
    poi_id: str

    @property
    def name(self) -> str:
        """The first part of its label."""
        return self.label.partition(",")[0]


@dataclass
class Notes:
    """The working state of an agent."""

    description: str = ""
    picture: SeenPicture | None = None  # the first one
    texts: list[TextLine] = field(default_factory=list)  # empty where there is writing that was not read
    fresh: list[str] = field(default_factory=list)  # sentences on what was read and not yet written
    searches: list[tuple[str, list[str]]] = field(default_factory=list)  # query, passages
    geocodes: list[tuple[str, list[Candidate]]] = field(default_factory=list)  # lookups of any kind
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

    def facts_only(self, passage: str) -> list[str]:
        """The sentences of a passage that do not speak to its reader; the others are counted."""
        sentences = [part.strip() for part in re.split(r"(?<=[.!?:])\s+|\n", passage) if part.strip()]
        kept = [sentence for sentence in sentences if not _ADDRESSED.search(sentence)]
        self.suspicious += len(sentences) - len(kept)
        return kept

    def facts_of(self, passages: Iterable[str]) -> list[str]:
        """The passages that hold facts, these alone."""
        return [" ".join(kept) for passage in passages if (kept := self.facts_only(passage))]


def trajectory_dice(request: ChatRequest, dice: random.Random) -> random.Random:
    """Chance that stays the same over a conversation: fixed by its opening and the seed.

    Without a seed, or with several choices of one seed, by the model's own first words.
    """
    if request.seed is not None and request.choices == 1:
        opening = itertools.takewhile(lambda message: message.role != "assistant", request.messages)
        shown = [(message.text, [picture.sha256 for picture in message.pictures]) for message in opening]
        return random.Random(f"{request.seed}/{shown}")
    first = next((m for m in request.messages if m.role == "assistant"), None)
    if first is None:
        return random.Random(dice.getrandbits(64))
    return random.Random(f"{first.text}/{[(c.name, c.arguments) for c in first.tool_calls]}")


def read_notes(request: ChatRequest, dice: random.Random) -> Notes:
    """The state after the last message, of a model that sees pictures or of one that is told of them."""
    limit = _LIMIT.search(request.prompt)
    notes = Notes(calls_allowed=int(limit[1]) if limit else DEFAULT_CALLS)
    told, slips = request.said_by("assistant"), trajectory_dice(request, dice).getrandbits(64)
    called = {call.id: call for message in request.messages for call in message.tool_calls}
    # By name alone: tools are not offered again once the calls are used up.
    tools = {tool.name: tool for tool in (*offered(request), *(Tool(call.name) for call in called.values()))}
    can_zoom = any(tool.purpose == "zoom" for tool in tools.values())
    for message in request.messages:
        call = called.get(message.tool_call_id or "")
        tool = tools[call.name] if call is not None else None
        if message.role == "assistant":
            notes.results = []
        elif call is not None and tool is not None:
            note_result(notes, tool, call.arguments, message.text)
            notes.results.append((tool, message.text))
        for picture in message.pictures:
            seen = look_at_picture(picture)
            is_map = tool is not None and tool.purpose in ("map", "satellite")
            lead = READ_ON_MAP if is_map else READ_IN_CROP if notes.picture else READ_IN_PICTURE
            # A picture's very small lines are left to a zoom, where there is one; a crop is read as far as eyes go.
            smallest = round(9 * seen.width / 1024) if can_zoom and lead == READ_IN_PICTURE else 0
            lines = _read(seen, smallest, random.Random(f"{slips}/{picture.sha256}"), request.temperature)
            words = [line.text for line in lines if line.text]
            if is_map:
                notes.map_words += words
            else:
                notes.texts += [replace(line, zoomed=lead == READ_IN_CROP) for line in lines]
            quoted = "; ".join(f'"{word}"' for word in dict.fromkeys(words)) or "no writing I can read"
            notes.fresh += [] if f"{lead} {quoted}." in told else [f"{lead} {quoted}."]
            if notes.picture is None:
                notes.picture, notes.description = seen, describe(seen)
    if notes.picture is None:
        notes.description = request.said_by("user")
        notes.texts += read_texts(notes.description)
    return notes


def _read(seen: SeenPicture, smallest: int, dice: random.Random, temperature: float) -> list[TextLine]:
    """The lines of a picture; slips, misses and writing that is not there come with temperature."""
    lines = []
    for line in seen.lines:
        is_sure = line in seen.readable and line.height >= smallest and line.score >= SURE_SCORE
        is_read = is_sure and dice.random() >= MISS_RATE * temperature
        rate = MISREAD_RATE * temperature * (2.0 if line.score < 0.9 else 1.0)
        lines.append(replace(line, text=misread(line.text.replace('"', "'"), rate, dice) if is_read else ""))
    if dice.random() < HALLUCINATION_RATE * temperature:
        names = place_names().biggest(dice.choice(("US", "FR", "BR", "IN", "DE", "MX", "ZA", "JP")))
        lines.append(TextLine(dice.choice(names[:40]).name))
    return lines


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


def read_texts(description: str, zoomed: bool = False) -> list[TextLine]:
    """The lines of an observer's text section."""
    texts = []
    for matched in _TEXT_LINE.finditer(description):
        box = [round(float(side)) for side in re.findall(r"\d+(?:\.\d+)?", matched["box"])]
        if len(box) == 4:
            score = float(matched["score"] or 0.5)
            texts.append(TextLine(matched["text"] or "", score, (box[0], box[1], box[2], box[3]), zoomed))
    return texts


def enlarged(box: tuple[float, ...], wide: float, high: float, size: tuple[int, int], off: float = 0.0) -> list[int]:
    """The box with a margin, inside the picture; `off` is how far it is aimed to the right."""
    (left, top, right, bottom), (width, height) = box, size
    x, y = (
        max(0, int(min(at, most - LEAST_BOX_PX))) for at, most in ((left - wide + off, width), (top - high, height))
    )
    far = ((right + wide + off, x, width), (bottom + high, y, height))
    return [x, y, *(min(most, max(int(at), start + LEAST_BOX_PX)) for at, start, most in far)]


def boxes_worth_zooming(notes: Notes, dice: random.Random, temperature: float) -> list[tuple[list[int], str]]:
    """(box with a margin, what is there) of writing that was not read well, the most promising first."""
    unclear = [seen for seen in notes.texts if not seen.zoomed and _wants_zoom(seen, notes)]
    unclear.sort(key=lambda seen: -(seen.box[2] - seen.box[0]) * (1.2 - seen.score))
    boxes = []
    for seen in unclear:
        # A sign is more than one line. Warmth aims less well.
        long, high = seen.box[2] - seen.box[0], seen.box[3] - seen.box[1]
        margin = ZOOM_MARGIN * (1 + temperature * dice.uniform(-0.5, 0.8))
        off = temperature * dice.gauss(0, 0.15) * long
        box = enlarged(seen.box, max(24.0, long * margin), max(16.0, high * margin * 2), notes.size, off)
        what = f'"{seen.text}"' if seen.text else "some writing"
        boxes.append((box, f"{what} at {box}"))
    return boxes


def _wants_zoom(seen: TextLine, notes: Notes) -> bool:
    """Whether a line is unclear, and no zoom has shown its middle; the box of a call may be malformed."""
    is_unclear = seen.score < CLEAR_SCORE or 0 < seen.height < SMALL_TEXT_PX
    x, y = (seen.box[0] + seen.box[2]) / 2, (seen.box[1] + seen.box[3]) / 2
    boxes = [box for box in notes.zooms if isinstance(box, list) and len(box) == 4]
    boxes = [box for box in boxes if all(isinstance(side, int | float) for side in box)]
    is_covered = any(left <= x <= right and top <= y <= bottom for left, top, right, bottom in boxes)
    return is_unclear and seen.box[2] > seen.box[0] and not is_covered


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
        candidates = [_candidate(row) for row in _rows(result)]
        # Of a point of interest by its name: an id says nothing to a reader.
        query = candidates[0].name if tool.purpose == "detail" and candidates else str(value)
        notes.geocodes.append((query, candidates))


def _rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of a result, whatever the tool calls them."""
    rows = next((result[key] for key in ("results", "pois", "tips") if key in result), [result.get("poi")])
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _candidate(row: dict[str, Any]) -> Candidate:
    """What an entry names, and where it lies if it gives a point."""
    label = str(row.get("display_name") or row.get("name") or "")
    told = (row.get(key) for key in ("address", "district", "country"))
    where = ", ".join(text for text in told if isinstance(text, str) and text)
    full = f"{label}, {where}" if where and not label.endswith(where) else label
    try:
        point = float(row["lat"]), float(row["lon"])
    except (KeyError, TypeError, ValueError):
        return Candidate(full, None, str(row.get("id") or ""))
    city = str(row.get("city") or "") or _town_of(str(row.get("district") or "")) or _town_of(label)
    country = (place_names().index.country(part) for part in reversed(full.split(",")))
    code = str(row.get("country_code") or "").upper() or next(filter(None, country), "")
    return Candidate(full, Place(city, *point, code), str(row.get("id") or ""))


def _town_of(address: str) -> str:
    """The town in an address, written from the country down, or from the town or its street up."""
    parts = [part.strip() for part in address.split(",")]
    if len(parts) > 1 and place_names().index.country(parts[0]):
        return parts[-1]
    return parts[1] if len(parts) > 2 and street_in(parts[0]) else parts[0]
