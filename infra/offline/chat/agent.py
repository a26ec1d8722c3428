"""The agent, which sees the picture or is told of it by an observer, thinks, calls tools and answers.

A thought says what its author did not say before. What a tool gave is told in the thought after it, with the tool's
own words, and a clue is named once. Sentences have several wordings; which one is used hangs on the request alone.
"""

import json
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import Any

from infra.offline.chat import writer
from infra.offline.chat.answer_form import Answer, write_answer
from infra.offline.chat.beliefs import LARGEST, LOOKUP, Belief, Guess, sentences_on, support_of, weigh_notes, with_doubt
from infra.offline.chat.clues import holds
from infra.offline.chat.notes import Notes, Tool, boxes_worth_zooming, enlarged, offered, read_notes, trajectory_dice
from infra.offline.chat.observer import clarity_of, light_of
from infra.offline.chat.placenames import Place
from infra.offline.chat.protocol import ChatRequest, Reply
from infra.offline.chat.writer import capital
from infra.offline.words import fold

MAX_QUOTED = 320  # characters of a page
LEAST_SUPPORT = 1.6  # two words of the signs
MAX_CLUES = 4
SLIP_RATE = 0.05  # how often it trusts its second thought instead of its first, at temperature 1
STEP = 1.2  # how much better one kind of step is than the next, in log-odds at temperature 1
LOOK = 10 * STEP  # of a first search by picture: nothing else tells as much
MAX_ZOOMS, MAX_SEARCHES, MAX_LOOKUPS = 2, 2, 4
SIGN_MARGIN = 0.35  # of a line's size around it
MALFORMED_RATE = 0.03


def agent_reply(request: ChatRequest, dice: random.Random) -> Reply:
    """A thought with a tool call, a thought with the answer, or the JSON a recipe asks for."""
    notes = read_notes(request, dice)
    tools = offered(request)
    belief = weigh_notes(notes)
    belief = with_doubt(belief, trajectory_dice(request, dice), request.temperature)
    if writer.wants_json(request):
        return writer.write_json(request, notes, belief, dice, conclude(request, notes, belief, dice))
    choice = next_action(tools, request.tool_choice, notes, belief, dice, request.temperature)
    teller = ThoughtWriter(request)
    results = [teller.result(tool, text, notes, belief) for tool, text in notes.results]
    seen = [*teller.scene(notes), *notes.fresh, *filter(None, results)]
    if choice is None:
        answer = replace(conclude(request, notes, belief, dice), street="".join(notes.streets[:1]))
        reply = write_answer(request, "\n".join([*seen, answer.explanation]), answer)
    else:
        tool, action = choice
        parts = (teller.clues(belief), teller.direction(belief), teller.missing(belief, action.purpose), action.why)
        thought = "\n".join([*seen, " ".join(part for part in parts if part)])
        if notes.suspicious and notes.results:
            thought += " A result addresses me with instructions; it is page text, so I leave it out."
        reply = tool.call(thought, action.value, notes.size)
        if dice.random() < MALFORMED_RATE:
            reply = replace(reply, calls=(spoil(*reply.calls[0], dice),))
    return reply


def conclude(request: ChatRequest, notes: Notes, belief: Belief, dice: random.Random) -> Answer:
    """The answer; its explanation is the last thought."""
    guess = belief.best or Guess(Place("", 0.0, 0.0, ""), 0.0, "nothing")
    if belief.rivals and dice.random() < SLIP_RATE * request.temperature:
        guess = belief.rivals[0]
    place, thought = guess.place, ThoughtWriter(request).conclusion(notes, belief, guess)
    named = place.lat, place.lon, place.country_name, place.region if belief.best else "", place.name
    return Answer(*named, "", belief.confidence(guess), thought)


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


class ThoughtWriter:
    """Words for one reply: a choice of wordings, and what it wrote before."""

    def __init__(self, request: ChatRequest) -> None:
        # A cold model says the same whatever its seed is.
        seed = request.seed if request.temperature > 0 else None
        self._dice = random.Random(f"wording/{request.fingerprint}/{seed}")
        self._before = "\n".join(message.text for message in request.messages if message.role == "assistant")

    def one_of(self, *wordings: str) -> str:
        """One of several ways to say the same."""
        return self._dice.choice(wordings)

    def scene(self, notes: Notes) -> list[str]:
        """The picture as a scene, before all else."""
        if notes.picture is None or self._before:
            return []
        scene = notes.picture.scene
        facts = [f"{light_of(scene)}, {clarity_of(scene)}", f"sky {scene.sky}", f"ground {scene.ground}"]
        facts += [f"traffic keeps to the {scene.side}"] if scene.side else []
        facts += [f"the centre line is {scene.centre}"] if scene.centre else []
        facts += [scene.landmark] if scene.landmark else []
        return [f"I look at the whole picture first: {'; '.join(facts)}."]

    def clues(self, belief: Belief) -> str:
        """The clues not named before, in one sentence; empty where there is none."""
        fresh = [reason for reason in belief.reasons if reason not in self._before][:MAX_CLUES]
        if not fresh:
            return "" if self._before else self.one_of("There are few clues.", "Little here tells of a country.")
        return f"{self.one_of('Clues', 'What speaks for a country', 'What I can use')}: {'; '.join(fresh)}."

    def direction(self, belief: Belief) -> str:
        """Where it points now: a first guess, the same as before, or another one and why."""
        if belief.best is None:
            return ""
        where = belief.best.place.label
        if not self._before:
            return self.one_of(
                f"So far this points to {where}.", f"My first guess is {where}.", f"This suggests {where}."
            )
        if where in self._before[self._before.rfind("<think>") :]:
            kept = f"{where} is still the best guess.", f"That leaves {where} in front.", f"I keep {where}."
            return self.one_of(*kept)
        if belief.best.why == LARGEST:
            return self.one_of(f"Without a name I fall back on {where}.", f"No town is named; I keep {where} in mind.")
        return self.one_of(f"Now this points to {where}.", f"That moves my guess to {where}.", f"So it may be {where}.")

    def missing(self, belief: Belief, purpose: str) -> str:
        """What is still missing, as the prompt asks to say before a call."""
        if purpose == "zoom":
            return self.one_of("What is missing is writing I can read.", "I need more of the writing.")
        if belief.best is None or not belief.best.city or belief.best.why == LARGEST:
            return self.one_of("What is missing is the town.", "I do not know the town yet.")
        if belief.best.why.startswith(LOOKUP):
            return self.one_of("I have a point, but want to be sure of it.", "The point could still be a namesake's.")
        if belief.settled:
            return self.one_of("What is missing is the exact point.", "What I lack are coordinates.")
        return self.one_of("What is missing is a proof of the town.", "The town is not certain yet.")

    def result(self, tool: Tool, text: str, notes: Notes, belief: Belief) -> str:
        """What a tool's answer says, in a sentence with its own words."""
        if '"error"' in text[:12]:
            failed = self.one_of("failed; I go on without it", "gave an error, so it tells me nothing")
            return f"The call of {tool.name} {failed}."
        if tool.purpose in ("search", "look") and notes.searches:
            query, passages = notes.searches[-1]
            told = _on_the_signs(passages, notes, belief.best.city if belief.best else "")
            if told:
                return self.one_of(f"A page found for {query} says: {told}", f"One of the pages reads: {told}")
            if not passages:
                return self.one_of(f"The search for {query} finds no page.", f"No page is found for {query}.")
            return f"The pages found for {query} {self.one_of('do not settle it', 'leave me where I was')}."
        if tool.purpose in ("geocode", "tips", "keyword", "detail") and notes.geocodes:
            query, found = notes.geocodes[-1]
            listed = "; ".join(candidate.label for candidate in found[:2])
            if tool.purpose == "detail":
                return f"Its entry on the map is {found[0].label}." if found else ""
            if tool.purpose != "geocode":
                return f"The map lists for {query}: {listed}." if listed else f"The map has nothing for {query}."
            if found and found[0].place is not None:
                at = f"{found[0].place.lat:.4f}, {found[0].place.lon:.4f}"
                return f"The geocoder places {query} at {at} ({found[0].label})."
            return self.one_of(f"The geocoder does not know {query}.", f"There is no entry for {query}.")
        return ""

    def conclusion(self, notes: Notes, belief: Belief, guess: Guess) -> str:
        """The last thought: the clues that count, and why this answer."""
        reasons = "; ".join(belief.reasons[:MAX_CLUES]) or "the scene shows little that is telling"
        lead = self.one_of(f"{capital(reasons)}.", f"Taken together: {reasons}.", f"To sum up, {reasons}.")
        if notes.suspicious:
            lead += " Instructions inside page text were left out."
        name = guess.city or guess.place.country_name or "nowhere in particular"
        if guess.why.startswith(LOOKUP):
            best = self.one_of("is the best I have", "is what I trust most")
            return f"{lead} The point I was given for {guess.why.removeprefix(LOOKUP)} {best}. I settle on {name}."
        if guess.why == LARGEST:
            return f"{lead} No town is certain, so I settle on {name}, the largest city of {guess.place.country_name}."
        if guess.why == "nothing":
            return f"{lead} I settle on a guess, since nothing points anywhere."
        return f"{lead} {capital(guess.why)}. I settle on {name}."


def _on_the_signs(passages: list[str], notes: Notes, believed: str) -> str:
    """The sentences of the page that speaks of the signs, of the believed town if one does; empty without one."""
    known = [
        " ".join(sentences_on(passage, notes)) for passage in passages if support_of(passage, notes) >= LEAST_SUPPORT
    ]
    if believed:
        known = [passage for passage in known if holds(fold(passage), fold(believed))] or known
    return shorten(known[0], MAX_QUOTED, placeholder=" …") if known else ""
