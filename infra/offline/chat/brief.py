"""The planner where its prompt asks for one short sentence: zoom to a street's plate, look its name up, answer."""

import json

from infra.offline.chat.answer_form import Answer, write_answer
from infra.offline.chat.clues import street_in
from infra.offline.chat.notes import GEOCODE, ZOOM, Notes, SeenText, Tool, nearly_alike, offered
from infra.offline.chat.protocol import ChatRequest
from infra.offline.chat.reply import Reply
from schemas.messages import json_object

MARK = "one short sentence"
MARGIN_X, MARGIN_Y, MORE_PX = 0.06, 0.15, 2


def wants_brief(request: ChatRequest) -> bool:
    """Whether the prompt asks for short thoughts."""
    return MARK in request.system


def brief_reply(request: ChatRequest, notes: Notes) -> Reply:
    """The next step. Without a plate that can be read it says so and answers nothing that could be right."""
    tools = {tool.purpose: tool for tool in offered(request).values()}
    plate = plate_of(notes)
    if plate is not None and ZOOM in tools and not notes.zooms:
        box = _grown(plate, notes.size())
        return _call("The plate with the street's name is small, so I look closer.", tools[ZOOM], box)
    if plate is not None and GEOCODE in tools and not notes.geocodes:
        return _call("I read the plate and ask where it is.", tools[GEOCODE], street_on(plate, notes))
    found = _first_result(notes)
    if found is not None:
        return Reply(write_answer(request, "The first result fits.", found))
    unknown = Answer(0.0, 0.0, "unknown", "", "unknown")
    return Reply(write_answer(request, "No street's name leads me anywhere.", unknown))


def plate_of(notes: Notes) -> SeenText | None:
    """The writing that most looks like a street's name, as the whole picture shows it."""
    streets = [seen for seen in notes.texts if seen.text and not seen.zoomed and street_in(seen.text)]
    return max(streets, key=lambda seen: (seen.score >= 0.8, seen.height, seen.score), default=None)


def street_on(plate: SeenText, notes: Notes) -> str:
    """The plate's words: from the closer look where it shows the same street, else as they were first read."""
    first = plate.text or ""
    for seen in notes.texts:
        if seen.zoomed and seen.text and (street_in(seen.text) or nearly_alike(seen.text, first)):
            return seen.text
    return first


def _grown(plate: SeenText, size: tuple[int, int] | None) -> list[int]:
    left, top, right, bottom = plate.box
    dx, dy = MARGIN_X * (right - left) + MORE_PX, MARGIN_Y * (bottom - top) + MORE_PX
    width, height = size or (10**6, 10**6)
    return [max(0, int(left - dx)), max(0, int(top - dy)), min(width, int(right + dx)), min(height, int(bottom + dy))]


def _first_result(notes: Notes) -> Answer | None:
    """The geocoder's first result in its own words."""
    for tool, text in reversed(notes.results):
        results = (json_object(text) or {}).get("results") if tool.purpose == GEOCODE else None
        if isinstance(results, list) and results and isinstance(results[0], dict):
            first = results[0]
            if isinstance(first.get("lat"), float | int) and isinstance(first.get("lon"), float | int):
                country, region, city = (str(first.get(name) or "") for name in ("country", "region", "city"))
                return Answer(_cut(first["lat"]), _cut(first["lon"]), country, region, city)
    return None


def _cut(degrees: float) -> float:
    """Two decimals, cut and not rounded: as one copies the beginning of a number."""
    whole, _, decimals = f"{degrees:.7f}".partition(".")
    return float(f"{whole}.{decimals[:2]}")


def _call(thought: str, tool: Tool, value: object) -> Reply:
    arguments = json.dumps(tool.arguments(value), ensure_ascii=False)
    return Reply(f"<think>{thought}</think>", ((tool.name, arguments),))
