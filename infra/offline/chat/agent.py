"""The agent, which sees the picture, thinks, calls tools and answers; and the planner, which does the same from an
observer's words.

A thought says what its author did not say before. What a tool gave is told in the thought after it, with the tool's
own words, and a clue is named once. Sentences have several wordings; which one is used hangs on the request alone.
"""

import itertools
import json
import random
import re
from collections.abc import Iterable

from infra.offline.chat import writer
from infra.offline.chat.agent_state import State, read_state
from infra.offline.chat.answer_form import Answer, write_answer
from infra.offline.chat.beliefs import LARGEST, Belief, Guess, weigh_notes, with_doubt
from infra.offline.chat.clues import street_in
from infra.offline.chat.notes import DETAIL, GEOCODE, KEYWORD, SEARCH, TIPS, ZOOM, Notes, Tool, offered, read_notes
from infra.offline.chat.observer import clarity_of, light_of
from infra.offline.chat.placenames import fold
from infra.offline.chat.policy import MALFORMED_RATE, next_action, spoil
from infra.offline.chat.protocol import ChatRequest
from infra.offline.chat.reply import Reply

MAX_QUOTED = 160
MAX_CLUES = 4
Results = Iterable[tuple[Tool, str]]
SLIP_RATE = 0.05  # how often it trusts its second thought instead of its first, at temperature 1


class ThoughtWriter:
    """Words for one reply: a choice of wordings, and what was said before."""

    def __init__(self, request: ChatRequest) -> None:
        # A cold model says the same whatever its seed is.
        seed = request.seed if request.temperature > 0 else None
        self._dice = random.Random(f"wording/{request.fingerprint}/{seed}")
        self._said = "\n".join(message.text for message in request.messages if message.role == "assistant")

    def one_of(self, *wordings: str) -> str:
        """One of several ways to say the same."""
        return self._dice.choice(wordings)

    def clues(self, belief: Belief) -> str:
        """The clues not named before, in one sentence; empty where there is none."""
        fresh = [reason for reason in belief.reasons if reason not in self._said][:MAX_CLUES]
        if not fresh:
            return "" if self._said else self.one_of("There are few clues.", "Little here tells of a country.")
        return f"{self.one_of('Clues', 'What speaks for a country', 'What I can use')}: {'; '.join(fresh)}."

    def direction(self, belief: Belief) -> str:
        """Where it points now: a first guess, the same as before, or another one and why."""
        best = belief.best
        if best is None:
            return ""
        where = f"{best.city}, {best.country_name}" if best.city else best.country_name
        if not self._said:
            return self.one_of(
                f"So far this points to {where}.", f"My first guess is {where}.", f"This suggests {where}."
            )
        if where in self._said[self._said.rfind("<think>") :]:
            return self.one_of(
                f"{where} is still the best guess.", f"That leaves {where} in front.", f"I keep {where}."
            )
        if best.why == LARGEST:
            return self.one_of(f"Without a name I fall back on {where}.", f"No town is named; I keep {where} in mind.")
        return self.one_of(f"Now this points to {where}.", f"That moves my guess to {where}.", f"So it may be {where}.")

    def missing(self, belief: Belief, purpose: str) -> str:
        """What is still missing, as the prompt asks to say before a call."""
        if purpose == ZOOM:
            return self.one_of("What is missing is writing I can read.", "I need more of the writing.")
        if belief.best is None or not belief.best.city or belief.best.why == LARGEST:
            return self.one_of("What is missing is the town.", "I do not know the town yet.")
        if belief.best.why.startswith("lookup of "):
            return self.one_of("I have a point, but want to be sure of it.", "The point could still be a namesake's.")
        if belief.settled:
            return self.one_of("What is missing is the exact point.", "What I lack are coordinates.")
        return self.one_of("What is missing is a proof of the town.", "The town is not certain yet.")

    def results(self, results: Results, notes: Notes, belief: Belief) -> list[str]:
        """What the tools' answers say, a sentence each, with their own words."""
        return [sentence for tool, text in results for sentence in self._of_result(tool, text, notes, belief)]

    def _of_result(self, tool: Tool, text: str, notes: Notes, belief: Belief) -> list[str]:
        if '"error"' in text[:12]:
            failed = self.one_of("failed; I go on without it", "gave an error, so it tells me nothing")
            return [f"The call of {tool.name} {failed}."]
        if tool.purpose == SEARCH and notes.searches:
            query, passages = notes.searches[-1]
            told = _on_the_signs(passages, notes, belief.best.city if belief.best else "")
            if told:
                return [self.one_of(f"A page found for {query} says: {told}", f"One of the pages reads: {told}")]
            if not passages:
                return [self.one_of(f"The search for {query} finds no page.", f"No page is found for {query}.")]
            return [f"The pages found for {query} {self.one_of('do not settle it', 'leave me where I was')}."]
        if tool.purpose == GEOCODE and notes.geocodes:
            asked, candidates = notes.geocodes[-1]
            if candidates:
                first = candidates[0]
                return [f"The geocoder places {asked} at {first.lat:.4f}, {first.lon:.4f} ({first.label})."]
            return [self.one_of(f"The geocoder does not know {asked}.", f"There is no entry for {asked}.")]
        if tool.purpose in (TIPS, KEYWORD) and notes.geocodes:
            asked, listed = notes.geocodes[-1][0], "; ".join(notes.listed[:2])
            return [f"The map lists for {asked}: {listed}." if listed else f"The map has nothing for {asked}."]
        if tool.purpose == DETAIL and notes.listed:
            return [f"Its entry on the map is {notes.listed[0]}."]
        return []

    def conclusion(self, notes: Notes, belief: Belief, guess: Guess) -> str:
        """The last thought: the clues that count, and why this answer."""
        reasons = "; ".join(belief.reasons[:MAX_CLUES]) or "the scene shows little that is telling"
        lead = self.one_of(
            f"{reasons[0].upper()}{reasons[1:]}.", f"Taken together: {reasons}.", f"To sum up, {reasons}."
        )
        if notes.suspicious:
            lead += " Instructions inside page text were left out."
        return f"{lead} {self._settled(guess)}"

    def _settled(self, guess: Guess) -> str:
        name = guess.city or guess.country_name or "nowhere in particular"
        if guess.why.startswith("lookup of "):
            query = guess.why.removeprefix("lookup of ")
            best = self.one_of("is the best I have", "is what I trust most")
            return f"The point I was given for {query} {best}. I settle on {name}."
        if guess.why == LARGEST:
            return f"No town is certain, so I settle on {name}, the largest city of {guess.country_name}."
        if guess.why == "nothing":
            return "I settle on a guess, since nothing points anywhere."
        why = guess.why[0].upper() + guess.why[1:]
        return f"{why}. I settle on {name}."


def _on_the_signs(passages: Iterable[str], notes: Notes, believed: str) -> str:
    """The sentences of the page that speaks of the signs, of the believed town if one does; empty without one."""
    words = {word for line in notes.words for word in fold(line).split() if len(word) > 3}
    known = [passage for passage in passages if len(words & set(fold(passage).split())) >= 2]
    if believed:
        known = [passage for passage in passages if f" {fold(believed)} " in f" {fold(passage)} "] or known
    return _sentences(known[0], words) if known else ""


def _sentences(passage: str, words: set[str]) -> str:
    """Whole sentences of a page from the one that holds most of the words on."""
    parts = re.split(r"(?<=[.!?])\s+", passage)
    start = max(range(len(parts)), key=lambda number: (len(words & set(fold(parts[number]).split())), -number))
    told = parts[start]
    for part in parts[start + 1 :]:
        if len(told) + len(part) >= MAX_QUOTED:
            break
        told += f" {part}"
    return told if len(told) <= 2 * MAX_QUOTED else told[: told.rfind(" ", 0, 2 * MAX_QUOTED)].rstrip(",;:. ") + " …"


def planner_reply(request: ChatRequest, dice: random.Random) -> Reply:
    """A thought with one tool call, or a thought with the final answer."""
    notes = read_notes(request)
    belief = with_doubt(weigh_notes(notes), trajectory_dice(request, dice), request.temperature)
    choice = next_action(offered(request), request.tool_choice, notes, belief, dice, request.temperature)
    teller = ThoughtWriter(request)
    told = teller.results(notes.results, notes, belief)
    if choice is None:
        answer, why = conclude(request, notes, belief, dice)
        return Reply(write_answer(request, " ".join([*told, why]), answer))
    tool, action = choice
    sentences = (
        *told,
        teller.clues(belief),
        teller.direction(belief),
        teller.missing(belief, action.purpose),
        action.why,
    )
    thought = " ".join(part for part in sentences if part)
    if notes.suspicious and notes.results:
        thought += " One of the results addressed me with instructions; it is page text, so I leave it out."
    return tool_call_reply(f"<think>{thought}</think>", tool.name, tool.arguments(action.value), dice)


def tool_call_reply(thought: str, name: str, arguments: dict[str, object], dice: random.Random) -> Reply:
    """A reply that calls a tool, now and then malformed."""
    text = json.dumps(arguments, ensure_ascii=False)
    if dice.random() < MALFORMED_RATE:
        name, text = spoil(name, text, dice)
    return Reply(thought, ((name, text),))


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


def conclude(request: ChatRequest, notes: Notes, belief: Belief, dice: random.Random) -> tuple[Answer, str]:
    """The answer and the last thought."""
    guess = belief.best
    if belief.rivals and dice.random() < SLIP_RATE * request.temperature:
        guess = belief.rivals[0]
    if guess is None:
        guess = Guess("", "", "", 0.0, 0.0, 0.0, "nothing")
    thought = ThoughtWriter(request).conclusion(notes, belief, guess)
    answer = Answer(
        guess.lat, guess.lon, guess.country_name, guess.region, guess.city, "", belief.confidence(guess), thought
    )
    return answer, thought


def agent_reply(request: ChatRequest, dice: random.Random) -> Reply:
    """A thought with a tool call, a thought with the answer, or the JSON a recipe asks for."""
    state = read_state(request, dice)
    belief = with_doubt(weigh_notes(state.notes), trajectory_dice(request, dice), request.temperature)
    if writer.wants_json(request):
        answer, _ = conclude(request, state.notes, belief, dice)
        return writer.write_json(request, state, belief, dice, answer)
    choice = next_action(offered(request), request.tool_choice, state.notes, belief, dice, request.temperature)
    teller = ThoughtWriter(request)
    seen = _seen(state, request, teller, belief)
    if choice is None:
        answer, why = conclude(request, state.notes, belief, dice)
        thought = seen + why
        return Reply(write_answer(request, thought, _with_street(answer, state.notes)))
    tool, action = choice
    sentences = (teller.clues(belief), teller.direction(belief), teller.missing(belief, action.purpose), action.why)
    thought = seen + " ".join(part for part in sentences if part)
    if state.notes.suspicious and state.results:
        thought += " A result addresses me with instructions; it is page text, so I leave it out."
    return tool_call_reply(f"<think>{thought}</think>", tool.name, tool.arguments(action.value), dice)


def _seen(state: State, request: ChatRequest, teller: ThoughtWriter, belief: Belief) -> str:
    """What is new since the last words: the picture at the start, then readings and results."""
    parts = []
    if state.whole is not None and not any(m.role == "assistant" for m in request.messages):
        scene = state.whole.scene
        facts = [f"{light_of(scene)}, {clarity_of(scene)}", f"sky {scene.sky}", f"ground {scene.ground}"]
        if scene.side:
            facts.append(f"traffic keeps to the {scene.side}")
        if scene.centre:
            facts.append(f"the centre line is {scene.centre}")
        if scene.landmark:
            facts.append(scene.landmark)
        parts.append(f"I look at the whole picture first: {'; '.join(facts)}.")
    parts += state.told
    parts += teller.results(state.results, state.notes, belief)
    return "\n".join(parts) + ("\n" if parts else "")


def _with_street(answer: Answer, notes: Notes) -> Answer:
    """The answer with the street a sign names, where one does."""
    for line in notes.words:
        street = street_in(line)
        if street:
            named = answer.lat, answer.lon, answer.country, answer.region, answer.city
            return Answer(*named, street[0], answer.confidence, answer.explanation)
    return answer
