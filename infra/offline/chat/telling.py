"""The sentences of a thought: what is new, where it points now, what is missing, and in the end why this answer.

A thought says what its author did not say before. What a tool gave is told in the thought after it, with the tool's
own words, and a clue is named once. Sentences have several wordings; which one is used hangs on the request alone.
"""

import random
import re
from collections.abc import Iterable

from infra.offline.chat.beliefs import LARGEST, Belief, Guess
from infra.offline.chat.notes import GEOCODE, SEARCH, ZOOM, Notes, Tool
from infra.offline.chat.placenames import fold
from infra.offline.chat.protocol import ChatRequest

MAX_QUOTED = 160
MAX_CLUES = 4
Results = Iterable[tuple[Tool, str]]


class Teller:
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
            nothing = self.one_of("say nothing of these signs", "are about other places")
            return [f"The pages found for {query} {nothing}."]
        if tool.purpose == GEOCODE and notes.geocodes:
            asked, found = notes.geocodes[-1]
            if found:
                return [f"The geocoder places {asked} at {found[0].lat:.4f}, {found[0].lon:.4f} ({found[0].label})."]
            return [self.one_of(f"The geocoder does not know {asked}.", f"There is no entry for {asked}.")]
        if tool.purpose not in (ZOOM, "") and notes.geocodes:
            asked, found = notes.geocodes[-1]
            listed = "; ".join(candidate.label for candidate in found[:2])
            return [f"The map lists for {asked}: {listed}." if listed else f"The map has nothing for {asked}."]
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
            asked = guess.why.removeprefix("lookup of ")
            fits = self.one_of("and nothing I saw speaks against it", "which fits what the picture shows")
            return f"The point I was given for {asked} is the best I have, {fits}. I settle on {name}."
        if guess.why == LARGEST:
            return f"Nothing names the town, so I settle on {name}, the largest city of {guess.country_name}."
        if guess.why == "nothing":
            return "I settle on a guess, since nothing points anywhere."
        why = guess.why[0].upper() + guess.why[1:]
        return f"{why}. I settle on {name}, though no tool gave me its coordinates."


def _on_the_signs(passages: Iterable[str], notes: Notes, believed: str) -> str:
    """The sentences of the page that speaks of the signs, of the believed town if one does; empty without one."""
    words = {word for line in notes.words for word in fold(line).split() if len(word) > 3}
    found = [passage for passage in passages if len(words & set(fold(passage).split())) >= 2]
    if believed:
        found = [passage for passage in passages if f" {fold(believed)} " in f" {fold(passage)} "] or found
    return _sentences(found[0], words) if found else ""


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
