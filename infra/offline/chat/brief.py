"""The planner that goes by street names alone: zoom to the board that bears one, look it up, answer."""

import random
from typing import Any

from infra.offline.chat.answer_form import Answer, write_answer
from infra.offline.chat.clues import street_in
from infra.offline.chat.notes import Notes, enlarged, nearly_alike, offered, read_notes
from infra.offline.chat.protocol import ChatRequest, Reply
from infra.offline.chat.sight import TextLine
from schemas.messages import json_object

MARGIN_X, MARGIN_Y, MORE_PX = 0.06, 0.15, 2
LEAST_PX = 20  # of a line


def brief_reply(request: ChatRequest, dice: random.Random) -> Reply:
    """The next step. Without a board that can be read it says so and answers nothing that could be right."""
    notes = read_notes(request, dice)
    tools = {tool.purpose: tool for tool in offered(request)}

    board = board_of([seen for seen in notes.texts if not seen.zoomed])
    if board and "zoom" in tools and not notes.zooms:
        return tools["zoom"].call(
            "The board with the street's name is small, so I look closer.", _around(board, notes), notes.size
        )
    names = names_on(board, notes)
    if names and "geocode" in tools and not notes.geocodes:
        return tools["geocode"].call("I read the board and ask where it is.", ", ".join(names), notes.size)
    result = _first_result(notes)
    if result is None and len(names) > 1 and "geocode" in tools and len(notes.geocodes) == 1 and notes.calls_left:
        return tools["geocode"].call(
            "No street there has this name, so I ask for the name alone.", names[0], notes.size
        )
    if result is not None:
        country, region, city = (str(result.get(name) or "") for name in ("country", "region", "city"))
        answer = Answer(_cut(result["lat"]), _cut(result["lon"]), country, region, city)
        return write_answer(request, "The first result fits.", answer)
    unknown = Answer(0.0, 0.0, "unknown", "", "unknown")
    return write_answer(request, "No street's name leads me anywhere.", unknown)


def board_of(lines: list[TextLine]) -> list[TextLine]:
    """The line that most looks like a street's name and the one below it.

    A board with both comes first, then one that is large enough to read and faces the camera: of the boards of a
    street the one seen at an angle is higher for its width, and hard to read for smaller eyes.
    """
    boards = [[seen, *_below(seen, lines)] for seen in lines if seen.text and street_in(seen.text)]
    return max(boards, key=lambda board: (len(board), *_legible(board[0])), default=[])


def _legible(seen: TextLine) -> tuple[bool, bool, float]:
    is_large = seen.height >= LEAST_PX
    return seen.score >= 0.8, is_large, (seen.box[2] - seen.box[0]) / max(1, seen.height) if is_large else seen.height


def _below(street: TextLine, lines: list[TextLine]) -> list[TextLine]:
    """The next line of the same board, which names the region: no digits, about as high, right below."""
    left, top, right, bottom = street.box

    def gap(seen: TextLine) -> float:
        return (seen.box[1] + seen.box[3] - top - bottom) / 2

    below = [
        seen
        for seen in lines
        if seen.text
        and not any(letter.isdigit() for letter in seen.text)
        and 0 < gap(seen) < 2 * (bottom - top)
        and left - (right - left) / 4 < (seen.box[0] + seen.box[2]) / 2 < right + (right - left) / 4
    ]
    return sorted(below, key=gap)[:1]


def names_on(board: list[TextLine], notes: Notes) -> list[str]:
    """The board's lines: from the closer look where it shows the same street, else as they were first read."""
    closer = [seen for seen in notes.texts if seen.zoomed and seen.text]
    for seen in closer:
        if board and (street_in(seen.text) or nearly_alike(seen.text, board[0].text)):
            board = [seen, *(_below(seen, closer) or board[1:])]
            break
    return [seen.text for seen in board if seen.text]


def _around(board: list[TextLine], notes: Notes) -> list[int]:
    left, top, right, bottom = (f(seen.box[k] for seen in board) for k, f in enumerate((min, min, max, max)))
    wide, high = MARGIN_X * (right - left) + MORE_PX, MARGIN_Y * (bottom - top) + MORE_PX
    return enlarged((left, top, right, bottom), wide, high, notes.size)


def _first_result(notes: Notes) -> dict[str, Any] | None:
    """The newest lookup's first result, in the geocoder's own words."""
    listed = [(json_object(text) or {}).get("results") for tool, text in notes.results if tool.purpose == "geocode"]
    first = listed[-1][0] if listed and isinstance(listed[-1], list) and listed[-1] else None
    is_placed = isinstance(first, dict) and all(isinstance(first.get(axis), float | int) for axis in ("lat", "lon"))
    return first if is_placed else None


def _cut(degrees: float) -> float:
    """Two decimals, cut and not rounded: as one copies the beginning of a number."""
    integer, _, decimals = f"{degrees:.7f}".partition(".")
    return float(f"{integer}.{decimals[:2]}")
