"""What the agent has before it: the picture, what it read in it and in crops, what its tools answered.

Everything is rebuilt from the messages. What it read in a picture it has already spoken of stands in its own thoughts;
only pictures that came since its last words are looked at anew, with the slips that temperature brings.
"""

import random
import re
from dataclasses import dataclass, field
from typing import Any

from infra.offline.chat.notes import (
    MAP,
    SATELLITE,
    ZOOM,
    Notes,
    SeenText,
    Tool,
    calls_allowed,
    note_result,
    offered,
    tool_of,
)
from infra.offline.chat.observer import describe
from infra.offline.chat.placenames import place_names
from infra.offline.chat.protocol import ChatRequest, Message, Picture
from infra.offline.chat.sight import READABLE_SCORE, SeenPicture, TextLine, look_at_picture

MISREAD_RATE = 0.004  # letters read wrong at temperature 1, in a line that is not very clear
MISS_RATE = 0.10  # lines overlooked at temperature 1
HALLUCINATION_RATE = 0.01  # looks that show writing which is not there, at temperature 1
SURE_SCORE = 0.75  # what it quotes is read this well; the rest is writing to look closer at
READ_IN_PICTURE, READ_IN_CROP, READ_ON_MAP = "I read in the picture:", "The zoom shows:", "The map shows:"
_READING = re.compile(rf"(?:{READ_IN_PICTURE}|(?P<crop>{READ_IN_CROP})|(?P<map>{READ_ON_MAP}))(?P<lines>[^\n]*)")
_LINE = re.compile(r'"([^"\n]{1,80})"')


@dataclass
class State:
    """The agent's working state."""

    notes: Notes
    whole: SeenPicture | None = None
    told: list[str] = field(default_factory=list)  # sentences on what is new since its last words
    results: list[tuple[Tool, str]] = field(default_factory=list)  # tool texts since then


def read_state(request: ChatRequest, dice: random.Random) -> State:
    """The state after the last message."""
    state = State(Notes(calls_allowed=calls_allowed(request)))
    tools = offered(request)
    calls: dict[str, tuple[Tool, dict[str, Any]]] = {}
    unread: list[tuple[str, Picture]] = []
    last = ""
    for message in request.messages:
        if message.role == "assistant":
            spoken = _recall(message, state)
            unread = [] if spoken else unread
            state.results = []
            calls |= {call.id: (tool_of(call.name, tools), call.parsed()) for call in message.tool_calls}
            state.notes.calls_made += len(message.tool_calls)
        elif message.role == "tool" and message.tool_call_id in calls:
            tool, arguments = calls[message.tool_call_id]
            last = tool.purpose
            note_result(state.notes, tool, arguments, message.text)
            state.results.append((tool, message.text))
        for picture in message.pictures:
            if state.whole is None:
                state.whole = look_at_picture(picture)
                unread.append(("", picture))
            else:
                unread.append((last or ZOOM, picture))
    # A whole picture's very small lines are left to a zoom, where there is one; a crop is read as far as the eyes go.
    can_zoom = any(tool.purpose == ZOOM for tool in tools.values())
    _look_at(state, unread, dice, request.temperature, can_zoom)
    if state.whole is not None:
        state.notes.description = describe(state.whole)
        state.notes.texts += [_unread(line) for line in state.whole.lines]
    return state


def _recall(message: Message, state: State) -> bool:
    """Takes what the agent said it read from its own words; whether it said anything of the kind."""
    has_changed = False
    for matched in _READING.finditer(message.text):
        has_changed = True
        for text in _LINE.findall(matched.group("lines")):
            if matched.group("map"):
                state.notes.map_words.append(text)
            else:
                state.notes.texts.append(SeenText(text, (0, 0, 0, 0), 0.95, 0, zoomed=bool(matched.group("crop"))))
    return has_changed


def _look_at(
    state: State, unread: list[tuple[str, Picture]], dice: random.Random, temperature: float, can_zoom: bool
) -> None:
    for purpose, picture in unread:
        seen = look_at_picture(picture)
        on_map = purpose in (MAP, SATELLITE)
        lead = READ_ON_MAP if on_map else READ_IN_CROP if purpose else READ_IN_PICTURE
        smallest = 0 if purpose or not can_zoom else round(9 * seen.width / 1024)
        lines = read_lines(seen, dice, temperature, smallest)
        for text in lines:
            if on_map:
                state.notes.map_words.append(text)
            else:
                state.notes.texts.append(SeenText(text, (0, 0, 0, 0), 0.95, 0, zoomed=bool(purpose)))
        quoted = "; ".join(f'"{text}"' for text in lines)
        state.told.append(f"{lead} {quoted}." if quoted else f"{lead} no writing I can read.")


def read_lines(seen: SeenPicture, dice: random.Random, temperature: float, smallest: int = 0) -> list[str]:
    """The lines these eyes read: slips, misses and writing that is not there come with temperature."""
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


def _unread(line: TextLine) -> SeenText:
    """A line of the whole picture as a place to look at; what it says is known only from a reading."""
    text = None if line.score < READABLE_SCORE else ""
    return SeenText(text, line.box, line.score, line.height)
