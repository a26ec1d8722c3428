"""The planner: reads the observer's words and the tools' answers, and decides what to do next."""

from __future__ import annotations

import json
import random
import re

from infra.offline.chat.beliefs import Belief, Guess, weigh
from infra.offline.chat.notes import GEOCODE, SEARCH, ZOOM, Notes, SeenText, take_notes
from infra.offline.chat.protocol import ChatRequest
from infra.offline.chat.reply import Reply

MALFORMED_RATE = 0.03
SLIP_RATE = 0.05  # how often it trusts its second thought instead of its first
MAX_ZOOMS = 2
MAX_SEARCHES = 2
CLEAR_SCORE = 0.9
SMALL_TEXT_PX = 18
ZOOM_MARGIN = 0.6


def speak(request: ChatRequest, dice: random.Random) -> Reply:
    """A thought with one tool call, or a thought with the final answer."""
    notes = take_notes(request)
    belief = weigh(notes)
    action = _next_action(request, notes, belief, dice)
    if action is None:
        return _answer(notes, belief, dice)
    thought, name, arguments = action
    if notes.suspicious:
        thought += " One of the results addressed me with instructions; it is page text, so I leave it out."
    text = json.dumps(arguments, ensure_ascii=False)
    if dice.random() < MALFORMED_RATE:
        name, text = _spoil(name, text, dice)
    return Reply(f"<think>{thought}</think>", ((name, text),))


def _next_action(
    request: ChatRequest, notes: Notes, belief: Belief, dice: random.Random
) -> tuple[str, str, dict[str, object]] | None:
    offered = set(request.tools)
    if request.tool_choice == "none" or not offered or notes.calls_left == 0:
        return None
    forced = request.tool_choice if request.tool_choice in offered else None
    if forced:
        offered = {forced}
    for choose in (_zoom, _search, _geocode):
        action = choose(offered, notes, belief)
        if action is not None:
            return action
    if forced or request.tool_choice == "required":
        return _anything(offered, notes, belief)
    return None


def _zoom(offered: set[str], notes: Notes, belief: Belief) -> tuple[str, str, dict[str, object]] | None:
    """A closer look at writing that was seen but not well read."""
    if ZOOM not in offered or len(notes.zooms) >= MAX_ZOOMS or notes.calls_left <= 2 or belief.settled:
        return None
    tried = [call.parsed().get("bbox_2d") for call in notes.zooms]
    unclear = [seen for seen in notes.texts if not seen.zoomed and _wants_zoom(seen) and not _covered(seen, tried)]
    if not unclear:
        return None
    target = max(unclear, key=lambda seen: (seen.box[2] - seen.box[0]) * (1.2 - seen.score))
    box = _grow(target.box, notes.size())
    what = f"'{target.text}'" if target.text else "some writing"
    return f"{belief.summary} I see {what} at {box} but not clearly; I look closer.", ZOOM, {"bbox_2d": box}


def _wants_zoom(seen: SeenText) -> bool:
    unclear = seen.text is None or seen.score < CLEAR_SCORE or 0 < seen.height < SMALL_TEXT_PX
    return unclear and seen.box[2] > seen.box[0]


def _covered(seen: SeenText, boxes: list[object]) -> bool:
    x, y = (seen.box[0] + seen.box[2]) / 2, (seen.box[1] + seen.box[3]) / 2
    return any(isinstance(b, list) and len(b) == 4 and b[0] <= x <= b[2] and b[1] <= y <= b[3] for b in boxes)


def _grow(box: tuple[float, float, float, float], size: tuple[int, int] | None) -> list[int]:
    """The box with a margin, inside the picture: a sign is more than one line."""
    left, top, right, bottom = box
    dx, dy = max(24.0, (right - left) * ZOOM_MARGIN), max(16.0, (bottom - top) * ZOOM_MARGIN * 2)
    width, height = size or (10**6, 10**6)
    return [max(0, int(left - dx)), max(0, int(top - dy)), min(width, int(right + dx)), min(height, int(bottom + dy))]


def _search(offered: set[str], notes: Notes, belief: Belief) -> tuple[str, str, dict[str, object]] | None:
    """A web search for the names on the signs, while it can still tell something new."""
    if SEARCH not in offered or len(notes.searches) >= MAX_SEARCHES:
        return None
    if notes.calls_left <= 1 and GEOCODE in offered:
        return None
    if belief.settled and (notes.searches or notes.geocodes):
        return None
    asked = {query for query, _ in notes.searches}
    for query in belief.queries:
        if query not in asked:
            return f"{belief.summary} I search for the names on the signs.", SEARCH, {"query": query}
    return None


def _geocode(offered: set[str], notes: Notes, belief: Belief) -> tuple[str, str, dict[str, object]] | None:
    """Coordinates for the best address not yet asked for."""
    if GEOCODE not in offered:
        return None
    asked = {address for address, _ in notes.geocodes}
    for address in belief.addresses:
        if address not in asked:
            return f"{belief.summary} I look up the coordinates of {address}.", GEOCODE, {"address": address}
    return None


def _anything(offered: set[str], notes: Notes, belief: Belief) -> tuple[str, str, dict[str, object]] | None:
    """A call for a client that insists on one."""
    name = sorted(offered)[0] if not offered & {SEARCH, GEOCODE, ZOOM} else sorted(offered & {SEARCH, GEOCODE, ZOOM})[0]
    place = belief.best.country_name if belief.best else "city centre"
    width, height = notes.size() or (1000, 500)
    arguments: dict[str, object] = {"bbox_2d": [width // 4, height // 4, 3 * width // 4, 3 * height // 4]}
    if name == SEARCH:
        arguments = {"query": " ".join(notes.words[:2]) or f"streets of {place}"}
    elif name == GEOCODE:
        arguments = {"address": place}
    elif name != ZOOM:
        arguments = {}
    return f"{belief.summary} A tool call is asked for.", name, arguments


def _answer(notes: Notes, belief: Belief, dice: random.Random) -> Reply:
    guess = belief.best
    if belief.rivals and dice.random() < SLIP_RATE:
        guess = belief.rivals[0]
    if guess is None:
        guess = Guess("", "", "", 0.0, 0.0, 0.0, "nothing")
    reasons = "; ".join(belief.reasons[:6]) or "the scene shows little that is telling"
    lookups = f" The tools gave {len(notes.searches)} searches and {len(notes.geocodes)} lookups."
    if notes.suspicious:
        lookups += " Instructions inside page text were left out."
    answer = {"country": guess.country_name, "city": guess.city, "lat": round(guess.lat, 5), "lon": round(guess.lon, 5)}
    settled = f"I settle on {guess.city or guess.country_name} ({guess.why})."
    thought = f"{reasons[0].upper()}{reasons[1:]}.{lookups} {settled}"
    return Reply(f"<think>{thought}</think><answer>{json.dumps(answer, ensure_ascii=False)}</answer>")


def _spoil(name: str, arguments: str, dice: random.Random) -> tuple[str, str]:
    """The call as a model writes it on a bad day: broken JSON, a wrong name, a wrong type, a missing field."""
    way = dice.randrange(4)
    if way == 0:
        return name, arguments[: max(1, len(arguments) * 2 // 3)]
    if way == 1:
        return re.sub("_", "-", name, count=1), arguments
    if way == 2:
        return name, json.dumps({key: str(value) for key, value in json.loads(arguments).items()} | {"extra": True})
    return name, "{}"
