"""The base answerers: one look at one picture, one answer. They differ in what they can use of it."""

import json
import math
import random
import re
from dataclasses import dataclass, replace

from infra.offline.chat.answer_form import Answer, write_answer
from infra.offline.chat.beliefs import Belief, Guess, cities_in_passage, country_name, match_weight, weigh_notes
from infra.offline.chat.clues import Evidence, areas_in, read_evidence, road_evidence, scene_evidence, street_in
from infra.offline.chat.notes import Notes, SeenText, facts_only, misread
from infra.offline.chat.observer import describe
from infra.offline.chat.placenames import (
    Memory,
    Place,
    apart_km,
    familiarity,
    place_names,
    recalls,
    remembered,
    towns_of_area,
)
from infra.offline.chat.protocol import ChatRequest
from infra.offline.chat.reply import Reply
from infra.offline.chat.sight import SeenPicture, look_at_picture
from infra.offline.chat.verifier import read_candidates
from infra.offline.chat.writer import wants_json, weighed_with_others, write_json
from infra.offline.facts import CONTINENTS, countries
from infra.offline.words import fold

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
_SAME_KM = 25.0
MOST_PAGES = 6


@dataclass(frozen=True)
class Option:
    """A town that may be the answer."""

    place: Place
    score: float
    found_by: str  # name | page | area | country
    why: str


def answerer_reply(request: ChatRequest, dice: random.Random, skill: Skill) -> Reply:
    """Where the last picture sent was taken, as far as this skill goes."""
    warmth = request.temperature
    skill = as_told(request, skill)
    seen = look_at_picture(request.last_picture())
    lines = _read(seen, skill, dice, warmth)
    evidence = read_evidence(lines)
    scene = seen.scene
    if skill.weighs_road or not lines:
        road_evidence(evidence, side=scene.side, centre=scene.centre, edge=scene.edge, sign=scene.sign)
        scene_evidence(evidence, scene)
    notes = _noted(request, lines)
    options = _options(lines, notes, evidence, skill, dice, warmth)
    best = options[0]
    lat, lon = remembered(best.place, skill.memory_of(best.place), dice, warmth)
    country = country_name(best.place.country)
    reasons = "; ".join(dict.fromkeys(evidence.notes[:4])) or "there is little to go by"
    thought = f"{reasons[0].upper()}{reasons[1:]}. {best.why}"
    sure = _confidence(options, skill)
    answer = Answer(round(lat, 4), round(lon, 4), country, "", best.place.name, "", sure, thought)
    if wants_json(request):
        return write_json(request, notes, _as_belief(seen, notes, options, evidence), dice, answer)
    if read_candidates(request)[1]:
        answer, _ = weighed_with_others(request, notes, _as_belief(seen, notes, options, evidence), answer)
    if warmth > 0 and dice.random() < skill.garbled_rate * min(1.0, warmth):
        return _garbled(best.place, dice)
    return Reply(write_answer(request, answer.explanation, answer))


def as_told(request: ChatRequest, skill: Skill) -> Skill:
    """The skill under the persona of the system's words: a traveler knows the towns of one continent."""
    told = " ".join(message.text for message in request.messages if message.role == "system")
    home = next((code for code, name in CONTINENTS.items() if re.search(rf"\btravell?er\b.*\b{name}\b", told)), "")
    return replace(skill, home=home) if home else skill


def _noted(request: ChatRequest, lines: list[str]) -> Notes:
    """What it read in the picture, and in the pages it is sent, less what speaks to a reader."""
    notes = Notes()
    notes.texts = [SeenText(line) for line in lines]
    told = "\n".join(message.text for message in request.messages if message.role == "user")
    pages = [" ".join(kept) for kept in (facts_only(page, notes) for page in _PAGE.findall(told)) if kept]
    if pages:
        notes.searches.append(("what I read", pages))
    return notes


def _read(seen: SeenPicture, skill: Skill, dice: random.Random, warmth: float) -> list[str]:
    """The lines big enough for these eyes, with the slips of these eyes."""
    limit = skill.reads_from_px * seen.width / 1024
    lines = []
    for line in seen.readable:
        # The smallest legible lines are read on some looks and not on others.
        blur = 1 + warmth * dice.gauss(0, 0.15)
        if line.height >= limit * blur:
            lines.append(misread(line.text, skill.misread_rate * warmth, dice))
    return lines


def _options(
    lines: list[str], notes: Notes, evidence: Evidence, skill: Skill, dice: random.Random, warmth: float
) -> list[Option]:
    """Towns that may be it, best first; at a temperature every option's odds are shaken."""
    names = place_names()
    odds: dict[Place, tuple[float, str, str]] = {}
    unknown = (-math.inf, "", "")
    for line in lines:
        street = street_in(line)
        for match in names.mentions(line):
            if not recalls(match.place, skill.memory_of(match.place), dice, warmth):
                continue
            hidden = street is not None and fold(match.seen) in fold(street[0])
            weight = match_weight(match) - (2.5 if hidden else 0.0) + evidence.score(match.place.country)
            if weight > odds.get(match.place, unknown)[0]:
                odds[match.place] = (weight, "name", f"The name of {match.place.name} is readable.")
    for _, pages in notes.searches:
        for rank, page in enumerate(pages[:MOST_PAGES]):
            for town, support in cities_in_passage(page, rank, notes).items():
                weight = support + evidence.score(town.country)
                if weight > odds.get(town, unknown)[0]:
                    odds[town] = (weight, "page", f"A page on what I read speaks of {town.name}.")
    ranked = evidence.ranked()
    for code, score in ranked[:12]:
        for area in areas_in(lines):
            for rank, town in enumerate(towns_of_area(code, area)[:3]):
                if familiarity(town, skill.memory_of(town)) > 0.6 and town not in odds:
                    why = f"The area code {area} is that of the region of {town.name}."
                    odds[town] = (score + 1.2 - 0.7 * rank, "area", why)
        # Without a name that convinces, the country's big cities are the fallback, and they always compete.
        listed = names.biggest(code)
        cities = [city for city in listed[:12] if familiarity(city, skill.memory_of(city)) > 0.6][:5] or listed[:1]
        for rank, city in enumerate(cities):
            if score - 0.7 * rank > odds.get(city, unknown)[0]:
                why = f"No place name convinces me, so I take a large city: {city.name}."
                odds[city] = (score - 0.7 * rank, "country", why)
    # Doubt about the country moves all of its towns together; doubt about a town only itself.
    moods = {code: dice.gauss(0, skill.doubt) for code in sorted({place.country for place in odds})}
    options = [
        Option(place, score + warmth * (moods[place.country] + 0.5 * skill.doubt * dice.gauss(0, 1)), found_by, why)
        for place, (score, found_by, why) in odds.items()
    ]
    return sorted(options, key=lambda option: -option.score)


def _confidence(options: list[Option], skill: Skill) -> float:
    """How likely it is to be within 25 km: of answers that say 0.7, about 70 of 100 are."""
    best = options[0]
    rivals = [option for option in options[1:] if _is_elsewhere(option.place, best.place)]
    lead = 1 / (1 + sum(math.exp(max(-20.0, option.score - best.score)) for option in rivals))
    known = familiarity(best.place, skill.memory_of(best.place))
    odds = _FOUND_BY[best.found_by] + _LEAD * _log_odds(lead) + _KNOWN * _log_odds(known)
    return max(0.01, min(0.97, 1 / (1 + math.exp(-odds))))


def _log_odds(chance: float) -> float:
    chance = max(1e-4, min(1 - 1e-4, chance))
    return math.log(chance / (1 - chance))


def _is_elsewhere(place: Place, other: Place) -> bool:
    return apart_km(place.lat, place.lon, other.lat, other.lon) > _SAME_KM


def _as_belief(seen: SeenPicture, notes: Notes, options: list[Option], evidence: Evidence) -> Belief:
    """What it saw and believes, in the form the writers of JSON and reviews take; the notes are completed."""
    notes.picture, notes.description = seen, describe(seen)
    notes.texts += [SeenText("", line.box, line.score, line.height) for line in seen.lines]
    belief = weigh_notes(notes)
    belief.evidence.notes = evidence.notes
    belief.guesses = [
        Guess(o.place.country, country_name(o.place.country), o.place.name, o.place.lat, o.place.lon, o.score, o.why)
        for o in options[:8]
    ]
    return belief


def _garbled(place: Place, dice: random.Random) -> Reply:
    """An answer no parser should turn into a point."""
    way = dice.randrange(3)
    if way == 0:
        return Reply("I'm sorry, but I can't determine where this picture was taken.")
    if way == 1:
        return Reply(f"<think>It could be {place.name}.</think><answer>Somewhere near {place.name}, perhaps.</answer>")
    return Reply(f'<think>It looks like {place.name}.</think><answer>{json.dumps({"lat": "unknown"})[:-1]}, "city"')
