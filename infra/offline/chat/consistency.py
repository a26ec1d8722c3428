"""The consistency reader: reads only a reasoning and says, level by level, what it supports (GeoAgent 4.3)."""

import json
import random
import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache

from infra.offline.chat.beliefs import country_name, match_weight
from infra.offline.chat.clues import (
    LANGUAGE_NAMES,
    Evidence,
    countries_in,
    read_evidence,
    road_evidence,
    speakers,
    street_in,
)
from infra.offline.chat.notes import Notes, facts_only
from infra.offline.chat.placenames import Place, place_names
from infra.offline.chat.protocol import ChatRequest
from infra.offline.chat.reply import Reply
from infra.offline.facts import countries
from infra.offline.gazetteer import admin1_names
from infra.offline.words import fold

STATED, LANGUAGE = 4.0, 1.5
FIRM, HEDGED, BORROWED, OPENING_WORD = 1.5, 0.5, 0.4, 0.4  # factors on what a mention is worth
MAX_CHARS = 40_000

_CONCLUSION = re.compile(r"<answer[^<>]{0,80}>.*?(?:</answer\s*>|\Z)", re.IGNORECASE | re.DOTALL)
_QUOTED = re.compile(r"(?<!\w)['\"‘“«]([^'\"‘’“”«»\n]{2,80}(?:['’]\w[^'\"‘’“”«»\n]{0,60})?)['\"’”»](?!\w)")
_NEGATION = re.compile(
    r"\b(?:not|never|neither|nor|rather than|instead of|unlike|exclud\w+|rul(?:es?|ed|ing) out"
    r"|isn't|cannot be|can't be|unlikely|as opposed to|different from|no longer)\b[^.;,]{0,50}$",
    re.IGNORECASE,
)
_REJECTED_AFTER = re.compile(
    r"^[^.;,]{0,30}\b(?:is|are|was|can be|could be)\s+(?:ruled out|excluded|unlikely|impossible|out of the question)",
    re.I,
)
_HEDGE = re.compile(
    r"\b(?:might|may|could|perhaps|possibly|maybe|cities like|countries like|such as|or|either)\b", re.I
)
_FIRM = re.compile(
    r"\b(?:settle on|conclu\w+|therefore|thus|strongly|must be|clearly|confirm\w*|identif\w+|point(?:s|ing)? to"
    r"|located in|final\w*|is readable|best match|i take|most likely|indicates?)\b",
    re.IGNORECASE,
)
_SIDE = re.compile(
    r"\b(?:driv\w+|traffic|cars?|keeps?)\b[^.;]{0,40}\b(?:on|to) the (left|right)\b"
    r"|\b(left|right)-hand (?:driving|traffic)",
    re.IGNORECASE,
)
_CENTRE = re.compile(r"\bcent(?:re|er) lines? (?:is|are|:)\s*(yellow|white)", re.IGNORECASE)
_PHONE = re.compile(r"\+\d[\d ()-]{0,16}")
# Parts of the world that some village somewhere is called after.
_WIDE = re.compile(r"asia|europe|africa|america|oceania|arctic|java|sumatra|borneo|scandinavia|balkans")
_STREET = re.compile(r"\b(?:avenue|avenida|street|road|rue|via|strasse|calle|rua|boulevard|plaza|square|place)\b", re.I)
_DIVISION = re.compile(
    r"\b(?:province|state|region|oblast|county|prefecture|department|governorate|district|territory|canton|municipality)\b"
)
UNKNOWN = "unknown"
COUNTRY_FROM, CLUE_LEAD = 3.0, 2.5  # support a country needs; lead it needs where only clues speak for it
REGION_FROM, PLACE_FROM = 2.0, 3.0
SAME_COUNTRY, SAME_REGION, OTHER_REGION = 3.0, 2.0, 1.5
IMPLIED = 0.5  # a town named for certain speaks for its country half as much as for itself
SLIP_RATE = 0.04  # how often it misses what a level says


@dataclass
class Support:
    """What speaks for each country, first-level division (`<ISO2>.<code>`) and town."""

    evidence: Evidence = field(default_factory=Evidence)
    stated: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # countries by name
    regions: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    places: dict[Place, float] = field(default_factory=lambda: defaultdict(float))
    denied: set[str] = field(default_factory=set)  # folded names the reasoning excludes
    suspicious: int = 0


@dataclass(frozen=True)
class Conclusion:
    """A level's name, or None, with why."""

    name: str | None
    why: str


def consistency_reply(request: ChatRequest, dice: random.Random) -> Reply:
    """Country, region and place as JSON; pictures are refused before this."""
    text = "\n\n".join(m.text for m in request.messages if m.role not in ("system", "developer"))
    support = read_reasoning(_CONCLUSION.sub("\n", text[:MAX_CHARS]))
    conclusions = conclude(support)
    slips = {level: dice.random() < SLIP_RATE for level in conclusions}
    known = {level: (None if slips[level] else conclusion.name) or UNKNOWN for level, conclusion in conclusions.items()}
    whys = "; ".join(conclusion.why for conclusion in conclusions.values())
    if support.suspicious:
        whys += "; sentences that address the reader were left out"
    return Reply(json.dumps({**known, "reason": whys}, ensure_ascii=False))


def read_reasoning(text: str) -> Support:
    """The support a text gives, sentence by sentence; sentences that speak to the reader give none."""
    notes, support = Notes(), Support()
    text = re.sub(r"</?think>", "\n", text)
    sentences = [sentence for line in text.splitlines() for sentence in facts_only(line, notes)]
    support.suspicious = notes.suspicious
    for sentence in sentences:
        _read_sentence(sentence, support)
    joined = " ".join(sentences)
    quoted = [quote for sentence in sentences for quote in _QUOTED.findall(sentence)]
    support.evidence = read_evidence(dict.fromkeys([*quoted, *_PHONE.findall(_QUOTED.sub(" ", joined))]))
    side, centre = _SIDE.search(joined), _CENTRE.search(joined)
    road_evidence(
        support.evidence,
        side=(side.group(1) or side.group(2)).lower() if side else None,
        centre=centre.group(1).lower() if centre else None,
    )
    for tag, name in LANGUAGE_NAMES.items():
        named = re.search(rf"\b{re.escape(name)}\b", joined)
        if named and not _is_denied(joined, named.start(), named.end()):
            for code, share in speakers().get(tag, {}).items():
                support.evidence.scores[code] += LANGUAGE * share
    return support


def _read_sentence(sentence: str, support: Support) -> None:
    """Adds the countries, divisions and towns that a sentence names, or denies."""
    firmness = HEDGED if _HEDGE.search(sentence) else FIRM if _FIRM.search(sentence) else 1.0
    folded = fold(sentence)
    for code in sorted(countries_in(sentence)):
        name = fold(countries()[code].name)
        at = folded.find(name)
        if at >= 0 and _is_denied(folded, at, at + len(name)):
            support.denied.add(name)
        else:
            support.stated[code] += STATED * firmness
    for start, end, codes in _regions_in(sentence):
        if _is_denied(sentence, start, end):
            support.denied.add(fold(sentence[start:end]))
            continue
        for code in codes:
            support.regions[code] += STATED * firmness
    signs = [(m.start(1), m.end(1), m.group(1)) for m in _QUOTED.finditer(sentence)]
    for match in place_names().mentions(sentence, fuzzy=False):
        at = sentence.find(match.seen)
        # A name is written with a capital; every other word of a sentence is some village's name as well.
        if (not match.seen[:1].isupper() and match.seen.isascii()) or _WIDE.fullmatch(fold(match.seen)):
            continue
        if _is_denied(sentence, at, at + len(match.seen)):
            support.denied.add(fold(match.seen))
            continue
        sign = next((text for start, end, text in signs if start <= at < end), "")
        street = street_in(sign)
        weight = match_weight(match) * firmness
        if sign and (_STREET.search(sign) or (street and fold(match.seen) in fold(street[0]))):
            weight *= BORROWED  # streets are called after other towns
        elif at == 0 and " " not in match.seen:
            weight *= OPENING_WORD
        support.places[match.place] += weight


def _is_denied(sentence: str, start: int, end: int) -> bool:
    return bool(_NEGATION.search(sentence[:start]) or _REJECTED_AFTER.search(sentence[end:]))


@lru_cache(maxsize=1)
def _regions_by_name() -> dict[str, list[str]]:
    """Folded name of a division, with and without its kind, to its codes."""
    codes_by_name: dict[str, list[str]] = defaultdict(list)
    for code, name in admin1_names().items():
        for key in {fold(name), _bare(fold(name))} - {""}:
            codes_by_name[key].append(code)
    return codes_by_name


def _bare(folded: str) -> str:
    """A division's name without its kind."""
    return " ".join(_DIVISION.sub(" ", folded).replace(" of ", " ").split())


def _regions_in(sentence: str) -> list[tuple[int, int, list[str]]]:
    """(start, end, codes) of the divisions a sentence names, the longest names first."""
    words = list(re.finditer(r"[^\W\d_]+(?:['’-][^\W\d_]+)*", sentence))
    known = _regions_by_name()
    taken: list[tuple[int, int, list[str]]] = []
    for size in (4, 3, 2, 1):
        for i in range(len(words) - size + 1):
            start, end = words[i].start(), words[i + size - 1].end()
            phrase = fold(sentence[start:end])
            codes = (known.get(phrase) or known.get(_bare(phrase), [])) if sentence[start].isupper() else []
            is_opening_word = i == 0 and size == 1
            if codes and not is_opening_word and not any(start < b and a < end for a, b, _ in taken):
                taken.append((start, end, codes))
    return taken


def conclude(support: Support) -> dict[str, Conclusion]:
    """What the reasoning supports at each level; a finer level may speak for a coarser one, never the reverse."""
    country, country_why = _country(support)
    place, place_why = _place(support, country)
    if country is None and place is not None:
        country, country_why = place.country, f"{place.name} lies in {country_name(place.country)}"
    region, region_why = _region(support, country, place)
    return {
        "country": Conclusion(country_name(country) if country else None, country_why),
        "region": Conclusion(region, region_why),
        "place": Conclusion(place.name if place else None, place_why),
    }


def _country(support: Support) -> tuple[str | None, str]:
    odds = {code: support.evidence.score(code) + support.stated.get(code, 0.0) for code in countries()}
    finer = [(code[:2], weight) for code, weight in support.regions.items()]
    # Of namesakes only the likeliest: 'London' is one mention, not ten.
    strongest: dict[str, tuple[float, str]] = {}
    for place, weight in support.places.items():
        if fold(place.name) not in support.denied:
            best_so_far = strongest.get(fold(place.name), (0.0, ""))
            strongest[fold(place.name)] = max(best_so_far, (weight, place.country), key=lambda pair: pair[0])
    finer += [(code, weight) for weight, code in strongest.values()]
    for code, weight in finer:
        odds[code] = odds.get(code, 0.0) + IMPLIED * weight
    open_odds = {code: score for code, score in odds.items() if fold(country_name(code)) not in support.denied}
    best, second = sorted(open_odds, key=lambda code: (-open_odds[code], code))[:2]
    if best in support.stated and open_odds[best] >= COUNTRY_FROM / 2:
        return best, f"{country_name(best)} is named"
    if open_odds[best] >= COUNTRY_FROM and open_odds[best] - open_odds[second] >= CLUE_LEAD:
        told = "; ".join(list(dict.fromkeys(support.evidence.notes))[:3])
        named = "a place named lies there" if best in dict(finer) else ""
        return best, f"{country_name(best)} fits: {told or named}"
    return None, "no country is supported"


def _place(support: Support, country: str | None) -> tuple[Place | None, str]:
    lands = {fold(facts.name) for facts in countries().values()}
    regions = {code: fold(admin1_names()[code]) for code in support.regions if code[:2] == country}
    odds: dict[Place, float] = {}
    for place, weight in support.places.items():
        name, own = fold(place.name), place.division
        # Some village is called Lebanon; a text that says Lebanon means the country or the region.
        if name in support.denied or name in lands - {fold(country_name(place.country))}:
            continue
        if name in regions.values() and regions.get(own) != name:
            continue
        score = weight + (SAME_COUNTRY if place.country == country else -SAME_COUNTRY if country else 0.0)
        odds[place] = score + (SAME_REGION if own in support.regions else -OTHER_REGION if regions else 0.0)
    if not odds:
        return None, "no place is named"
    best = max(odds, key=lambda place: (odds[place], place.population, place.name))
    if odds[best] < PLACE_FROM + (SAME_COUNTRY if best.country == country else 0.0):
        return None, "no place is named with enough support"
    return best, f"{best.name} is named"


def _region(support: Support, country: str | None, place: Place | None) -> tuple[str | None, str]:
    names = admin1_names()
    own = place.division if place else ""
    odds = {
        code: weight + (SAME_COUNTRY if code[:2] == country else -SAME_COUNTRY if country else 0.0)
        for code, weight in support.regions.items()
        if not place or fold(names[code]) != fold(place.name) or code == own
    }
    if own in names:
        odds[own] = max(odds.get(own, 0.0), REGION_FROM + (SAME_COUNTRY if own[:2] == country else 0.0))
    best = max(odds, key=lambda code: (odds[code], code), default=None)
    if best is None or odds[best] < REGION_FROM:
        return None, "no region is supported"
    why = "is named" if best in support.regions else ""
    return names[best], f"{names[best]} {why}" if why else f"{place.name if place else ''} lies in {names[best]}"
