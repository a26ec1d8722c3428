"""What a model believes so far: guesses with their odds, and what would be worth asking next."""

import math
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from infra.offline.chat.clues import (
    Evidence,
    countries_in,
    holds,
    read_evidence,
    road_evidence,
    sign_words_in,
    street_in,
)
from infra.offline.chat.notes import Candidate, Notes
from infra.offline.chat.placenames import Match, Place, country_name, place_names
from infra.offline.gazetteer import admin1_names
from infra.offline.words import fold, telling_words

LARGEST = "its largest city"  # why a town is guessed of which nothing was seen
LOOKUP = "lookup of "  # how the reason of a guess begins that a lookup gave
SETTLED_ODDS = 2.5  # how far the best guess must lead before no further search is made
BIGGEST_CITY = 0.5  # what "no name known, but this country" is worth beside a name on a sign
DOUBT = 1.2  # spread of its second thoughts at temperature 1, in log-odds
MOST_PAGES = 6
Odds = dict[Place, tuple[float, str]]  # log-odds of towns, and why


@dataclass(frozen=True)
class Guess:
    """A town that may be the answer."""

    place: Place
    score: float
    why: str
    found_by: str = "name"  # name | page | area | country

    @property
    def city(self) -> str:
        return self.place.name


@dataclass
class Belief:
    evidence: Evidence
    guesses: list[Guess] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)

    @property
    def best(self) -> Guess | None:
        return self.guesses[0] if self.guesses else None

    @property
    def rivals(self) -> list[Guess]:
        """Guesses that mean another place than the best one."""
        return [guess for guess in self.guesses[1:] if not guess.place.is_at(self.guesses[0].place)]

    @property
    def settled(self) -> bool:
        """Whether the first guess leads clearly and is a city, not only a country."""
        best, rivals = self.best, self.rivals
        return bool(best and best.city and (not rivals or best.score - rivals[0].score >= SETTLED_ODDS))

    def confidence(self, guess: Guess) -> float:
        """How likely the guess is against its rivals; doubt about what was not thought of keeps it below 1."""
        others = [rival for rival in self.guesses if not rival.place.is_at(guess.place)]
        odds = sum(math.exp(min(20.0, rival.score - guess.score) / 2) for rival in others)
        return max(0.02, min(0.95, 0.95 / (1 + odds)))

    @property
    def reasons(self) -> list[str]:
        return list(dict.fromkeys(self.evidence.notes))


def with_doubt(belief: Belief, dice: random.Random, temperature: float) -> Belief:
    """The belief with each guess's odds shaken; the same dice shake the same guess alike from turn to turn."""
    if temperature <= 0:
        return belief
    key = dice.getrandbits(64)
    moved = [
        replace(guess, score=guess.score + temperature * DOUBT * random.Random(f"{key}/{guess.city}").gauss(0, 1))
        for guess in belief.guesses
    ]
    belief.guesses = sorted(moved, key=lambda guess: -guess.score)
    return belief


def weigh_notes(notes: Notes) -> Belief:
    """Beliefs from the description, the searches and the lookups."""
    evidence = read_evidence(notes.words)
    road_evidence(
        evidence,
        side=notes.value("driving side", "left|right"),
        centre=notes.value("centre line", "yellow|white"),
        edge=notes.value("edge lines", "yellow|white"),
        sign=notes.value("direction sign", "green|blue|yellow|white"),
    )
    belief = Belief(evidence, _guesses(notes, evidence))
    belief.queries = _queries(notes, evidence, belief.best.place.country if belief.best else "")
    belief.addresses = _addresses(notes, belief)
    return belief


def sightings(lines: Iterable[str], notes: Notes) -> Iterator[tuple[Match, float, str | None]]:
    """(match, log-odds, query) of the towns that lines name, and of those that pages speak of; a sign has no query."""
    for line in lines:
        street = street_in(line)
        for match in place_names().mentions(line):
            is_borrowed = street is not None and fold(match.seen) in fold(street[0])
            yield match, match_weight(match) - (2.5 if is_borrowed else 0.0), None
    for query, passages in notes.searches:
        for rank, passage in enumerate(passages[:MOST_PAGES]):
            for place, weight in cities_in_passage(passage, rank, notes).items():
                yield Match(place, place.name), weight, query


def city_odds(notes: Notes, evidence: Evidence) -> Odds:
    """Cities named on signs or in search results, with log-odds and the reason."""
    odds: Odds = {}
    for match, weight, query in sightings(notes.words, notes):
        why = (
            f"a page found for {query} speaks of {match.seen}" if query is not None else f"a sign reads '{match.seen}'"
        )
        before, reason = odds.get(match.place, (0.0, why))
        odds[match.place] = before + weight, reason if before >= weight else why
    return {place: (weight + evidence.score(place.country), why) for place, (weight, why) in odds.items()}


def cities_in_passage(passage: str, rank: int, notes: Notes) -> dict[Place, float]:
    """Cities a page speaks of, weighed by how much of the signs' own words it repeats."""
    support = support_of(passage, notes)
    if support <= 0:
        return {}
    lands = countries_in(passage)
    own = fold(" ".join(notes.words))
    told: dict[Place, float] = {}
    for sentence in sentences_on(passage, notes):
        for match in place_names().mentions(_without_divisions(sentence, lands), fuzzy=False):
            # A page is prose: most of its words are some village's name, but only names have capitals. And a named
            # country rules out the others.
            if not match.is_name or (lands and match.place.country not in lands):
                continue
            weight = support * (1.0 - 0.1 * rank) + (1.5 if lands else 0.0) + (0.0 if match.primary else -0.7)
            weight += 0.2 * math.log10(1 + match.place.population)
            # Where the page repeats the sign, only an address is news.
            if fold(match.seen) in own:
                if f", {match.seen}," not in sentence:
                    continue
                weight *= 0.6
            told[match.place] = max(told.get(match.place, 0.0), weight)
    return told


def sentences_on(passage: str, notes: Notes) -> list[str]:
    """The sentences of a page that hold the signs' words, each with the next: the rest is about something else."""
    sentences = re.split(r"(?<=[.!?])\s+(?=[^\W\d_])", passage)
    held = [number for number, sentence in enumerate(sentences) if support_of(sentence, notes) > 0] or [0]
    return [sentence for number, sentence in enumerate(sentences) if {number, number - 1} & {*held}]


def _without_divisions(sentence: str, lands: set[str]) -> str:
    """The sentence without the region and country at the end of its addresses: 'New Mexico' does not name Mexico."""
    for code in lands:
        for division in _division_names(code):
            sentence = sentence.replace(f", {division}, {country_name(code)}", ",")
        sentence = sentence.replace(f", {country_name(code)}", ",")
    return sentence


@lru_cache(maxsize=512)
def _division_names(country: str) -> list[str]:
    return [name for code, name in admin1_names().items() if code[:2] == country]


def match_weight(match: Match) -> float:
    """How telling a name on a sign is: exact, the usual name, of a place many know."""
    weight = 3.0 + 0.5 * math.log10(1 + match.place.population)
    weight -= 0.0 if match.primary else 1.0
    weight -= 0.0 if match.exact else 1.5
    return weight + min(1.0, 0.15 * (len(fold(match.seen)) - 5))


def support_of(passage: str, notes: Notes) -> float:
    """How much a page is about what the signs say: a phone number or whole lines weigh most, names alone less."""
    folded, digits = fold(passage), re.sub(r"\D", "", passage)
    lines = sum(1 for line in {fold(line) for line in notes.words} if len(line) >= 5 and line in f" {folded} ")
    names = {word for line in notes.words for word in telling_words(line)}
    single = sum(1 for word in names if holds(folded, word) or (ord(word[0]) > 0x3000 and word in folded))
    numbers = (re.sub(r"\D", "", line) for line in notes.words)
    phone = any(len(number) >= 7 and number in digits for number in numbers)
    return min(8.0, 2.0 * lines + 0.8 * single + (4.0 if phone else 0.0))


def _guesses(notes: Notes, evidence: Evidence) -> list[Guess]:
    odds = city_odds(notes, evidence)
    guesses = [Guess(place, score, why) for place, (score, why) in odds.items()]
    for query, candidates in notes.geocodes:
        for rank, candidate in enumerate(candidates[:5]):
            if candidate.place is not None:
                score = _lookup_score(query, candidate, candidate.place, odds, evidence, notes) - 0.3 * rank
                guesses.append(Guess(candidate.place, score, f"{LOOKUP}{query}"))
    # A country is always a guess: a name that contradicts every other clue must not win for want of rivals.
    for code, score in evidence.ranked()[:3]:
        guesses += [Guess(city, score + BIGGEST_CITY, LARGEST) for city in place_names().biggest(code)[:1]]
    return sorted(guesses, key=lambda guess: -guess.score)[:8]


def _lookup_score(
    query: str, candidate: Candidate, place: Place, odds: Odds, evidence: Evidence, notes: Notes
) -> float:
    """A geocoder's candidate: as likely as what was believed of the cities near it, and a little more."""
    near = [score for other, (score, _) in odds.items() if other.is_at(place)]
    score = 0.6 + (max(near) if near else evidence.score(place.country) + 1.0)
    street = query.split(",")[0]
    score += 1.5 * (street_in(street) is not None and fold(street) in fold(candidate.label))
    name_on_sign = fold(candidate.name)
    if candidate.poi_id and len(name_on_sign) >= 5:
        # A point of interest that is called as a sign reads is the strongest find a map can give.
        score += 2.5 * any(name_on_sign in fold(line) for line in notes.words)
        score += 1.0 * any(fold(line) in fold(candidate.label) for line in notes.map_words if len(line) >= 5)
    return score


def _queries(notes: Notes, evidence: Evidence, believed: str) -> list[str]:
    """Searches worth making: the most telling two lines together, then one by one.

    The country stands in them where it is both what the picture says and what is believed by now.
    """
    ranked = sorted(notes.words, key=lambda line: -_telling(line))
    telling = [re.sub(r"\s+", " ", line) for line in ranked if _telling(line) > 0]
    if not telling:
        return []
    country = evidence.ranked()[0][0]
    known = country_name(country) if evidence.score(country) >= 5 and country == believed else ""
    queries = [" ".join([*telling[:2], known]), *[f"{line} {known}" for line in telling[:3]]]
    # A word twice would count twice; a query is words, not a sentence.
    return list(dict.fromkeys(" ".join(dict.fromkeys(query.split())) for query in queries))


def _telling(line: str) -> float:
    letters = len(re.findall(r"[^\W\d_]", line))
    if letters < 2 or re.fullmatch(r"[\d\s+().-]+(?:km|m)?", line):
        return 0.0
    score = min(letters, 16) / 8
    if street_in(line):
        score += 1.5
    words = sign_words_in(line)
    if words:
        score += 1.0 if letters > sum(len(word) for word, _ in words) + 2 else -1.0
    return score + (1.5 if place_names().mentions(line, fuzzy=False) else 0.0)


def _addresses(notes: Notes, belief: Belief) -> list[str]:
    """Addresses to look up: the street in the best city, then the city, then the runner-up."""
    cities = [guess.place.full_name for guess in belief.guesses if not guess.why.startswith(LOOKUP)]
    wanted = [f"{street}, {cities[0]}" for street in notes.streets[:1]] + cities[:1] if cities else []
    if any(candidates and query in wanted for query, candidates in notes.geocodes):
        return []
    return wanted if belief.settled else wanted + cities[1:2]
