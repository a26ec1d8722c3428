"""The searches of a conversation, and which of their results speak of the picture's very place.

Labels follow from the truth, by a rule on names. They are made when trajectories are judged and rollouts are rewarded;
no prompt, tool or model is given them, except as what a kept trajectory's own replies are taught to say.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.messages import Message, json_object, texts_of
from tasks.agent.environment import Trajectory
from tasks.agent.toolbox import CallRecord
from tasks.geo.names import country_code, spellings
from tasks.recipes.reverse.form import useful_in, with_useful
from tasks.reward.answer import ParseFailure
from tasks.reward.levels import is_namesake, known_names
from tasks.reward.outcome import Truth
from tasks.reward.prose import countries_in, fold_text, mentions

SEARCHES = ("image_search", "text_search")
Verifier = Callable[[str], bool]  # the text of a result -> whether a model says that it speaks of the place
Row = dict[str, Any]


@dataclass
class Search:
    """One search: what was asked, what was shown, and what the next reply said of it."""

    reply: int  # number of the reply that asked
    name: str
    arguments: Row
    rows: tuple[Row, ...] | None = None  # None: it was refused, or nothing is recorded for it
    likeness: float = 1.0  # of the recorded question that was answered
    marked: frozenset[int] | None = None  # numbers that the next reply calls useful; None: it says nothing
    is_repeated: bool = False  # asked before, or shows nothing that was not shown before
    useful: frozenset[int] = field(default_factory=frozenset)  # the labels

    @property
    def box(self) -> list[float] | None:
        """The region that was searched for, in thousandths."""
        box = self.arguments.get("bbox_2d")
        is_box = isinstance(box, list) and len(box) == 4 and all(isinstance(side, int | float) for side in box)
        return box if is_box else None


def searches_of(trajectory: Trajectory, truth: Truth, verifier: Verifier | None = None) -> list[Search]:
    """The searches in order, each with its labels."""
    records = iter(trajectory.calls)
    by_id: dict[str, Search] = {}
    waiting: list[Search] = []
    searches: list[Search] = []
    earlier: list[tuple[str, Row]] = []
    seen: set[str] = set()
    reply = -1
    for message in trajectory.messages:
        if message["role"] == "assistant":
            reply += 1
            for search in waiting:
                search.marked = useful_in("\n".join(texts_of(message)))
            waiting = []
            for call in message.get("tool_calls") or ():
                arguments = json_object(call["function"]["arguments"]) or {}
                by_id[call["id"]] = Search(reply, call["function"]["name"], arguments)
        elif message["role"] == "tool":
            record = next(records, CallRecord("", True, True))
            made = by_id.get(str(message.get("tool_call_id")))
            if made is None or made.name not in SEARCHES:
                continue
            search = made
            searches.append(search)
            search.rows, search.likeness = _rows("\n".join(texts_of(message))), record.likeness
            shown = {str(row.get("url") or row) for row in search.rows or ()}
            search.is_repeated = (search.name, search.arguments) in earlier or bool(shown and shown <= seen)
            earlier.append((search.name, search.arguments))
            seen |= shown
            search.useful = frozenset(
                row["number"] for row in search.rows or () if is_useful(_text(row), truth, verifier)
            )
            if search.rows is not None:
                waiting.append(search)
    return searches


def with_labels(trajectory: Trajectory, truth: Truth) -> list[Message]:
    """The conversation with every reply after a search saying what was useful, as the labels have it."""
    replies = {search.reply + 1: sorted(search.useful) for search in searches_of(trajectory, truth) if search.rows}
    messages: list[Message] = []
    number = -1
    for message in trajectory.messages:
        number += message["role"] == "assistant"
        if message["role"] == "assistant" and number in replies:
            message = {**message, "content": with_useful("\n".join(texts_of(message)), replies[number])}
        messages.append(message)
    return messages


def is_useful(text: str, truth: Truth, verifier: Verifier | None = None) -> bool:
    """Whether a text speaks of the true town (of a truth without one, its region): by its names, and of no other land.

    Where the rule says no a model may be asked, if it is not a namesake that the text speaks of.
    """
    address = truth.address
    place = address.city or address.region
    if not place:
        return False
    names = known_names(address)["city" if address.city else "province_or_state"]
    # Names of three letters are looked for as they are written in the truth.
    written = f" {fold_text(text)} "
    is_named = mentions(written, names) or any(f" {form} " in written for form in spellings(place))
    folded = written
    for name in sorted(names | spellings(place), key=len, reverse=True):
        folded = folded.replace(f" {name} ", " | ")  # Lebanon in Ohio names no other land
    code, lands = country_code(address.country or ""), countries_in(folded, text) & countries_in(written, text)
    # Behind the town's name stands its region, or the country at once: Mexico is a region's name as well.
    bare = re.sub(rf",\s{{0,3}}{re.escape(address.country or '')}\b", "", text, flags=re.IGNORECASE)
    if (code and lands and code not in lands) or is_namesake(ParseFailure("prose", text=bare), address):
        return False
    if is_named:
        return True
    return verifier is not None and verifier(text)


def _rows(text: str) -> tuple[Row, ...] | None:
    """The numbered results that a tool's text holds; None where it was no search's answer."""
    rows = (json_object(text) or {}).get("results")
    if not isinstance(rows, list):
        return None
    return tuple(row for row in rows if isinstance(row, dict) and isinstance(row.get("number"), int))


def _text(row: Row) -> str:
    return ". ".join(str(row[name]) for name in ("title", "content") if row.get(name))


def matthews(marked: Sequence[int] | frozenset[int], useful: frozenset[int], count: int, nothing: float = 1.0) -> float:
    """The Matthews correlation of marks with labels over results 1 to count; 0 where it is not defined.

    `nothing` is its value where nothing is useful and nothing was marked.
    """
    if not marked and not useful:
        return nothing
    both = len(useful & set(marked))
    only_marked, only_useful = len(set(marked)) - both, len(useful) - both
    neither = max(0, count - both - only_marked - only_useful)
    product = (both + only_marked) * (both + only_useful) * (neither + only_marked) * (neither + only_useful)
    return (both * neither - only_marked * only_useful) / float(product) ** 0.5 if product else 0.0
