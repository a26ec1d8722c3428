"""What to do next: every call that may help with its worth, and a choice that temperature makes less sure."""

import json
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from infra.offline.chat.beliefs import LARGEST, LOOKUP, Belief
from infra.offline.chat.notes import Notes, Tool, enlarged
from infra.offline.chat.sight import TextLine
from infra.offline.words import fold

STEP = 1.2  # how much better one kind of step is than the next, in log-odds at temperature 1
LOOK = 10 * STEP  # of a first search by picture: nothing else tells as much
MAX_ZOOMS, MAX_SEARCHES, MAX_LOOKUPS = 2, 2, 4
CLEAR_SCORE, SMALL_TEXT_PX, ZOOM_MARGIN = 0.9, 18, 0.6
SIGN_MARGIN = 0.35  # of a line's size around it
MALFORMED_RATE = 0.03


@dataclass(frozen=True)
class Action:
    """A call worth making: for what, with which value, why, and how much it is worth."""

    purpose: str
    value: Any
    why: str
    worth: float = 0.0


def next_action(
    tools: list[Tool], choice: str, notes: Notes, belief: Belief, dice: random.Random, temperature: float
) -> tuple[Tool, Action] | None:
    """The tool to call and why, or None where it is time to answer; `choice` is the request's tool_choice."""
    if choice == "none" or not tools or notes.calls_left == 0:
        return None
    usable = {tool.purpose: tool for tool in reversed(tools) if choice in ("auto", "required", tool.name)}
    actions = [action for action in _actions(notes, belief, dice, temperature, usable) if action.purpose in usable]
    if choice == "auto":
        actions.append(Action("", None, ""))  # to answer
    elif not actions:
        place = belief.best.place.label if belief.best else "city centre"
        actions.append(Action(next(iter(usable)), place, "A tool call is requested."))
    # The best one; at a temperature each one's worth is shaken first.
    best = max(actions, key=lambda action: action.worth + temperature * gumbel(dice))
    return None if best.value is None else (usable[best.purpose], best)


def gumbel(dice: random.Random) -> float:
    """A draw that turns the highest of shaken log-odds into a draw by those odds."""
    return -math.log(-math.log(min(max(dice.random(), 1e-9), 1 - 1e-9)))


def _actions(
    notes: Notes, belief: Belief, dice: random.Random, temperature: float, usable: dict[str, Tool]
) -> Iterable[Action]:
    if "look" in usable and not notes.calls and (board := _largest_sign(notes)):
        yield Action("look", board, "The largest sign may stand on some page, so I search for pictures of it.", LOOK)
    if "zoom" in usable:
        yield from _zooms(notes, belief, dice, temperature)
    if notes.calls_left > 1 or "geocode" not in usable:
        yield from _searches(notes, belief)
    for rank, address in enumerate(a for a in belief.addresses if ("geocode", a) not in notes.calls):
        yield Action("geocode", address, _why_geocode(address, belief), STEP * (1 - 0.4 * rank))
    if usable.keys() & {"tips", "keyword"}:
        yield from _lookups(usable, notes, belief)
    yield from _checks(notes, belief)


def _largest_sign(notes: Notes) -> list[int]:
    """The box around the largest line that can be read; a sign is more than its line."""
    lines = notes.picture.readable if notes.picture is not None else ()
    if not lines:
        return []
    box = max(lines, key=lambda line: line.height * (line.box[2] - line.box[0])).box
    wide, high = (SIGN_MARGIN * (box[far] - box[far - 2]) + 4 for far in (2, 3))
    return enlarged(box, wide, high, notes.size)


def _zooms(notes: Notes, belief: Belief, dice: random.Random, temperature: float) -> Iterable[Action]:
    """Closer looks at writing that was seen but not well read."""
    if len(notes.zooms) >= MAX_ZOOMS or notes.calls_left <= 2 or belief.settled:
        return
    for rank, (box, what) in enumerate(boxes_worth_zooming(notes, dice, temperature)[:3]):
        if what.startswith('"'):
            why = f"The letters of {what} are small, so I look closer to be sure of them."
        else:
            why = f"There is {what} that I cannot make out from here, so I zoom in."
        yield Action("zoom", box, why, (3 - 0.6 * rank) * STEP)


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


def _searches(notes: Notes, belief: Belief) -> Iterable[Action]:
    """Web searches for the names on the signs, while they can still tell something new."""
    if len(notes.searches) >= MAX_SEARCHES:
        return
    # A second opinion is not needed once a town is settled.
    worth = -STEP if belief.settled and (notes.searches or notes.geocodes) else 2 * STEP
    lead = "I search once more, with other words:" if notes.searches else "I search the web for the names on signs:"
    for rank, query in enumerate(q for q in belief.queries if ("search", q) not in notes.calls):
        yield Action("search", query, f"{lead} {query}.", worth - 0.4 * STEP * rank)


def _why_geocode(address: str, belief: Belief) -> str:
    """Another town than the one in front gets its reason: it would come out of nowhere."""
    if belief.best is not None and belief.best.city not in address:
        for guess in belief.guesses:
            if guess.city and guess.place.full_name in address:
                reason = f"the largest city of {guess.place.country_name}" if guess.why == LARGEST else guess.why
                return f"{guess.city} is not out of the question ({reason}), so I ask the geocoder for {address} too."
    return f"A geocoder gives coordinates, so I look up {address}."


def _lookups(usable: dict[str, Tool], notes: Notes, belief: Belief) -> Iterable[Action]:
    """Points of interest by the signs' own names, then by name and town, then the town itself."""
    if len(notes.geocodes) >= MAX_LOOKUPS:
        return
    settled = belief.settled and any(c.poi_id and c.place for _, candidates in notes.geocodes for c in candidates[:1])
    purpose = "keyword" if "keyword" in usable else "tips"
    first = "tips" if "tips" in usable and not notes.geocodes else purpose
    for rank, query in enumerate(belief.queries[1:4]):
        if (first, query) not in notes.calls:
            worth = (-STEP if settled else 2 * STEP) - 0.4 * STEP * rank
            yield Action(first, query, f"I look for {query} on the map.", worth)
    town = belief.best.city if belief.best is not None else ""
    if town and (purpose, town) not in notes.calls and not settled:
        yield Action(purpose, town, f"I look up {town} itself.", 0.6 * STEP)


def _checks(notes: Notes, belief: Belief) -> Iterable[Action]:
    """Details and maps of what was found: whether the names around fit the picture."""
    listed = [found for _, candidates in notes.geocodes for found in candidates[:2] if found.poi_id and found.place]
    # A suggestion that is called as a sign reads comes first.
    signs = fold(" / ".join(notes.words))
    tips = [found for _, candidates in notes.geocodes for found in candidates if found.poi_id and not found.place]
    tips.sort(key=lambda tip: fold(tip.name) not in signs)
    for rank, found in enumerate([*listed[:2], *tips[:2]][:3]):
        if ("detail", found.poi_id) not in notes.calls:
            yield Action("detail", found.poi_id, f"I check the details of {found.name}.", STEP * (0.8 - 0.4 * rank))
    best = belief.best
    if best is not None and best.why.startswith(LOOKUP):
        for purpose, worth in (("map", 0.6), ("satellite", -0.2)):
            if all(kind != purpose for kind, _ in notes.calls):
                point = best.place.lat, best.place.lon
                yield Action(purpose, point, f"I look at the map around {best.city}.", worth * STEP)


def spoil(name: str, arguments: str, dice: random.Random) -> tuple[str, str]:
    """The call as a model writes it on a bad day: broken JSON, a wrong name, a wrong type, a missing field."""
    wrong_type = {key: str(value) for key, value in json.loads(arguments).items()} | {"extra": True}
    ways = (
        (name, arguments[: max(1, len(arguments) * 2 // 3)]),
        (name.replace("_", "-", 1), arguments),
        (name, json.dumps(wrong_type)),
        (name, "{}"),
    )
    return dice.choice(ways)
