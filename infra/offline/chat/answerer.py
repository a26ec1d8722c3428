"""The base answerers: one look at one picture, one answer. They differ in what they can use of it."""

import math
import random
import re
from dataclasses import dataclass, replace

from infra.offline.chat.answer_form import Answer, write_answer
from infra.offline.chat.beliefs import Guess, sightings, weigh_notes
from infra.offline.chat.clues import Evidence, areas_in, read_evidence, road_evidence, scene_evidence
from infra.offline.chat.notes import Notes, misread
from infra.offline.chat.observer import describe
from infra.offline.chat.placenames import (
    Memory,
    Place,
    familiarity,
    log_odds,
    logistic,
    place_names,
    recalls,
    remembered,
    towns_of_area,
)
from infra.offline.chat.protocol import ChatRequest, Reply
from infra.offline.chat.sight import SeenPicture, TextLine, look_at_picture
from infra.offline.chat.writer import capital, wants_json, weighed_with_others, write_json
from infra.offline.facts import CONTINENTS, countries

# What a traveler knows better, and what it pays for that elsewhere, in log10 of the population of half-known towns: of
# other continents it knows the large cities.
AT_HOME, ABROAD = -1.0, 2.0
_PAGE = re.compile(r"^Page \d+: (\S[^\n]*)$", re.MULTILINE)


@dataclass(frozen=True)
class Skill:
    """What one answerer is capable of."""

    memory: Memory
    reads_from_px: float  # smallest line it reads, at 1024 px picture width
    misread_rate: float  # chance per letter of reading another, at temperature 1
    weighs_road: bool  # whether it uses road rules and scenery to choose among namesakes
    doubt: float  # spread of its second thoughts at temperature 1, in log-odds
    garbled_rate: float  # unparsable or refused answers when sampled
    home: str = ""  # the continent whose towns it knows better, and others' worse

    def memory_of(self, place: Place) -> Memory:
        """How well it knows the towns around a place."""
        if not self.home:
            return self.memory
        known = countries().get(place.country)
        shift = AT_HOME if known is not None and known.continent == self.home else ABROAD
        return replace(self.memory, half_known=self.memory.half_known + shift)


SMALL = Skill(Memory("small", 4.5, 0.55, 2.5), 9.0, 0.03, False, 1.4, 0.05)
BASE = Skill(Memory("base", 3.5, 0.6, 0.25), 6.5, 0.015, True, 0.7, 0.03)
LARGE = Skill(Memory("large", 3.0, 0.6, 0.25), 5.0, 0.004, True, 0.6, 0.02)

# Log-odds of an answer within 25 km: by what the town was found, by the lead over towns elsewhere, by how well it is
# known. Fitted to 2,160 answers of the three at temperatures 0 and 1, in a world (seed 501) that is not measured in.
_FOUND_BY = {"name": 0.49, "page": 0.49, "area": -2.07, "country": -2.81}
_LEAD, _KNOWN = 0.82, 0.08


def answerer_reply(request: ChatRequest, dice: random.Random, skill: Skill) -> Reply:
    """Where the last picture sent was taken, as far as this skill goes."""
    warmth = request.temperature
    skill = as_told(request, skill)
    seen = look_at_picture(request.last_picture())
    lines = _read(seen, skill, dice, warmth)
    words = [line.text for line in lines]
    evidence = read_evidence(words)
    scene = seen.scene
    if skill.weighs_road or not lines:
        road_evidence(evidence, side=scene.side, centre=scene.centre, edge=scene.edge, sign=scene.sign)
        scene_evidence(evidence, scene)
    notes = _noted(request, seen, lines)
    guesses = _guesses(words, notes, evidence, skill, dice, warmth)
    best, place = guesses[0], guesses[0].place
    lat, lon = remembered(place, skill.memory_of(place), dice, warmth)
    reasons = "; ".join(dict.fromkeys(evidence.notes[:4])) or "there is little to go by"
    thought = f"{capital(reasons)}. {best.why}"
    sure = _confidence(guesses, skill)
    answer = Answer(round(lat, 4), round(lon, 4), place.country_name, "", place.name, "", sure, thought)
    # In the form that the writers of JSON and reviews take.
    belief = weigh_notes(notes)
    belief.evidence.notes, belief.guesses = evidence.notes, guesses[:8]
    if wants_json(request):
        return write_json(request, notes, belief, dice, answer)
    answer = weighed_with_others(request, notes, belief, answer)
    if warmth > 0 and dice.random() < skill.garbled_rate * min(1.0, warmth):
        return _garbled(place, dice)
    return write_answer(request, answer.explanation, answer)


def as_told(request: ChatRequest, skill: Skill) -> Skill:
    """The skill under the persona of the system's words: a traveler knows the towns of one continent."""
    told = request.said_by("system")
    home = next((code for code, name in CONTINENTS.items() if re.search(rf"\btravell?er\b.*\b{name}\b", told)), "")
    return replace(skill, home=home) if home else skill


def _noted(request: ChatRequest, seen: SeenPicture, lines: list[TextLine]) -> Notes:
    """What it read in the picture, and in the pages it is sent, less what speaks to a reader."""
    notes = Notes(describe(seen), seen, lines)
    pages = notes.facts_of(_PAGE.findall(request.said_by("user")))
    notes.searches += [("what I read", pages)] if pages else []
    return notes


def _read(seen: SeenPicture, skill: Skill, dice: random.Random, warmth: float) -> list[TextLine]:
    """The lines big enough for these eyes, with the slips of these eyes."""
    limit = skill.reads_from_px * seen.width / 1024
    # The smallest legible lines are read on some looks and not on others.
    legible = [line for line in seen.readable if line.height >= limit * (1 + warmth * dice.gauss(0, 0.15))]
    return [replace(line, text=misread(line.text, skill.misread_rate * warmth, dice)) for line in legible]


def _guesses(
    lines: list[str], notes: Notes, evidence: Evidence, skill: Skill, dice: random.Random, warmth: float
) -> list[Guess]:
    """Towns that may be it, best first; at a temperature the odds of each are shaken."""
    guesses: dict[Place, Guess] = {}

    def offer(place: Place, score: float, found_by: str, why: str) -> None:
        if place not in guesses or score > guesses[place].score:
            guesses[place] = Guess(place, score, why, found_by)

    def is_known(place: Place) -> bool:
        return familiarity(place, skill.memory_of(place)) > 0.6

    for match, weight, query in sightings(lines, notes):
        place, score = match.place, weight + evidence.score(match.place.country)
        if query is not None:
            offer(place, score, "page", f"A page on what I read speaks of {place.name}.")
        elif recalls(place, skill.memory_of(place), dice, warmth):
            offer(place, score, "name", f"The name of {place.name} is readable.")
    for code, score in evidence.ranked()[:12]:
        for area in areas_in(lines):
            for rank, town in enumerate(towns_of_area(code, area)[:3]):
                if is_known(town) and town not in guesses:
                    why = f"The area code {area} is that of the region of {town.name}."
                    offer(town, score + 1.2 - 0.7 * rank, "area", why)
        # Without a name that convinces, the country's big cities are the fallback, and they always compete.
        listed = place_names().biggest(code)
        for rank, city in enumerate([city for city in listed[:12] if is_known(city)][:5] or listed[:1]):
            why = f"No place name convinces me, so I take a large city: {city.name}."
            offer(city, score - 0.7 * rank, "country", why)
    # Doubt about the country moves all of its towns together; doubt about a town only itself.
    moods = {code: dice.gauss(0, skill.doubt) for code in sorted({place.country for place in guesses})}
    shaken = [
        replace(guess, score=guess.score + warmth * (moods[place.country] + 0.5 * skill.doubt * dice.gauss(0, 1)))
        for place, guess in guesses.items()
    ]
    return sorted(shaken, key=lambda guess: -guess.score)


def _confidence(guesses: list[Guess], skill: Skill) -> float:
    """How likely it is to be within 25 km: of answers that say 0.7, about 70 of 100 are."""
    best = guesses[0]
    rivals = [guess for guess in guesses[1:] if not guess.place.is_at(best.place)]
    lead = 1 / (1 + sum(math.exp(max(-20.0, guess.score - best.score)) for guess in rivals))
    known = familiarity(best.place, skill.memory_of(best.place))
    return max(0.01, min(0.97, logistic(_FOUND_BY[best.found_by] + _LEAD * log_odds(lead) + _KNOWN * log_odds(known))))


def _garbled(place: Place, dice: random.Random) -> Reply:
    """An answer no parser should turn into a point."""
    broken = (
        "I'm sorry, but I can't determine where this picture was taken.",
        f"<think>It could be {place.name}.</think><answer>Somewhere near {place.name}, perhaps.</answer>",
        f'<think>It looks like {place.name}.</think><answer>{{"lat": "unknown", "city"',
    )
    return Reply(dice.choice(broken))
