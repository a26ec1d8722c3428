"""The agent, which sees the picture or is told of it by an observer, thinks, calls tools and answers.

A thought says what its author did not say before. What a tool gave is told in the thought after it, with the tool's
own words, and a clue is named once. Sentences have several wordings; which one is used hangs on the request alone.
"""

import random
from dataclasses import replace
from textwrap import shorten

from infra.offline.chat import writer
from infra.offline.chat.answer_form import Answer, write_answer
from infra.offline.chat.beliefs import LARGEST, LOOKUP, Belief, Guess, sentences_on, support_of, weigh_notes, with_doubt
from infra.offline.chat.clues import holds
from infra.offline.chat.notes import Notes, Tool, offered, read_notes, trajectory_dice
from infra.offline.chat.observer import clarity_of, light_of
from infra.offline.chat.placenames import Place
from infra.offline.chat.policy import MALFORMED_RATE, next_action, spoil
from infra.offline.chat.protocol import ChatRequest, Reply
from infra.offline.chat.writer import capital
from infra.offline.words import fold

MAX_QUOTED = 320  # characters of a page
LEAST_SUPPORT = 1.6  # two words of the signs
MAX_CLUES = 4
SLIP_RATE = 0.05  # how often it trusts its second thought instead of its first, at temperature 1


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
