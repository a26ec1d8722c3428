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
from infra.offline.chat.placenames import Place, fold, place_names
from infra.offline.chat.protocol import ChatRequest
from infra.offline.chat.reply import Reply
from infra.offline.facts import countries
from infra.offline.gazetteer import admin1_names, gazetteer

STATED, LANGUAGE = 4.0, 1.5
FIRM, HEDGED, BORROWED, OPENING_WORD = 1.5, 0.5, 0.4, 0.4  # factors on what a mention is worth
MAX_CHARS = 40_000

_CONCLUSION = re.compile(r"<answer[^<>]{0,80}>.*?(?:</answer\s*>|\Z)", re.IGNORECASE | re.DOTALL)
_FENCED = re.compile(r"<(think|reasoning|thought|cot)\b[^<>]{0,80}>(.*?)(?:</\1\s*>|\Z)", re.IGNORECASE | re.DOTALL)
_MARKED = re.compile(r"^[ \t#*]*(?:the )?(?:reasoning|chain of thought|thoughts?|cot)\b[^\n:]{0,40}:", re.I | re.M)
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
    r"|\b(left|right)-hand (?:driving|traffic)|\bdriv\w+ side\W{1,4}(left|right)\b",
    re.IGNORECASE,
)
_CENTRE = re.compile(
    r"\bcent(?:re|er) lines? (?:is|are|:)\s*(yellow|white)|\b(yellow|white) (?:\w+ )?cent(?:re|er) line", re.IGNORECASE
)
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


def reasoning_in(request: ChatRequest) -> str:
    """The reasoning in the messages, without its conclusion: thoughts in tags, else after a label, else all."""
    text = "\n\n".join(m.text for m in request.messages if m.role not in ("system", "developer"))
    text = _CONCLUSION.sub("\n", text[:MAX_CHARS])
    fenced = [m.group(2) for m in _FENCED.finditer(text)]
    if fenced:
        return "\n".join(fenced)
    marked = _MARKED.search(text)
    return text[marked.end() :] if marked else text


def read_reasoning(text: str) -> Support:
    """The support a text gives, sentence by sentence; sentences that speak to the reader give none."""
    notes, support = Notes(), Support()
    sentences = [sentence for line in text.splitlines() for sentence in facts_only(line, notes)]
    support.suspicious = notes.suspicious
    quoted: list[str] = []
    for sentence in sentences:
        quoted += _QUOTED.findall(sentence)
        _read_countries(sentence, support)
        _read_regions(sentence, support)
        _read_places(sentence, support)
    whole = " ".join(sentences)
    support.evidence = read_evidence(dict.fromkeys([*quoted, *_PHONE.findall(_QUOTED.sub(" ", whole))]))
    side, centre = _SIDE.search(whole), _CENTRE.search(whole)
    if side or centre:
        road_evidence(
            support.evidence,
            side=next(word.lower() for word in side.groups() if word) if side else None,
            centre=next(word.lower() for word in centre.groups() if word) if centre else None,
        )
    for tag, name in LANGUAGE_NAMES.items():
        if re.search(rf"\b{re.escape(name)}\b", whole) and not _denied_in(whole, name):
            for code, share in speakers().get(tag, {}).items():
                support.evidence.scores[code] += LANGUAGE * share
    return support


def _read_countries(sentence: str, support: Support) -> None:
    for code in sorted(countries_in(sentence)):
        name = countries()[code].name
        if _denied_in(sentence, name):
            support.denied.add(fold(name))
        else:
            support.stated[code] += STATED * _firmness(sentence)


@lru_cache(maxsize=1)
def _regions_by_name() -> dict[str, list[str]]:
    """Folded name of a division, with and without its kind, to its codes."""
    codes_by_name: dict[str, list[str]] = defaultdict(list)
    for code, name in admin1_names().items():
        folded = fold(name)
        for key in {folded, _bare(folded)} - {""}:
            codes_by_name[key].append(code)
    return codes_by_name


def _bare(folded: str) -> str:
    """A division's name without its kind."""
    return " ".join(_DIVISION.sub(" ", folded).replace(" of ", " ").split())


def _read_regions(sentence: str, support: Support) -> None:
    words = list(re.finditer(r"[^\W\d_]+(?:['’-][^\W\d_]+)*", sentence))
    known = _regions_by_name()
    taken: list[tuple[int, int]] = []
    for size in (4, 3, 2, 1):
        for i in range(len(words) - size + 1):
            start, end = words[i].start(), words[i + size - 1].end()
            phrase = sentence[start:end]
            codes = (known.get(fold(phrase)) or known.get(_bare(fold(phrase)), [])) if phrase[:1].isupper() else []
            if not codes or (i == 0 and size == 1) or any(start < b and a < end for a, b in taken):
                continue
            taken.append((start, end))
            if _denied_at(sentence, start, end):
                support.denied.add(fold(phrase))
                continue
            for code in codes:
                support.regions[code] += STATED * _firmness(sentence)


def _read_places(sentence: str, support: Support) -> None:
    signs = [(m.start(1), m.end(1), m.group(1)) for m in _QUOTED.finditer(sentence)]
    for match in place_names().mentions(sentence, fuzzy=False):
        at = sentence.find(match.seen)
        # A name is written with a capital; every other word of a sentence is some village's name as well.
        if (not match.seen[:1].isupper() and match.seen.isascii()) or _WIDE.fullmatch(fold(match.seen)):
            continue
        if _denied_at(sentence, at, at + len(match.seen)):
            support.denied.add(fold(match.seen))
            continue
        weight = match_weight(match) * _firmness(sentence)
        sign = next((text for start, end, text in signs if start <= at < end), None)
        street = street_in(sign) if sign is not None else None
        if sign is not None and (_STREET.search(sign) or (street and fold(match.seen) in fold(street[0]))):
            weight *= BORROWED  # streets are called after other towns
        elif at == 0 and " " not in match.seen:
            weight *= OPENING_WORD
        support.places[match.place] += weight


def _firmness(sentence: str) -> float:
    if _HEDGE.search(sentence):
        return HEDGED
    return FIRM if _FIRM.search(sentence) else 1.0


def _denied_in(sentence: str, name: str) -> bool:
    at = fold(sentence).find(fold(name))
    return at >= 0 and _denied_at(fold(sentence), at, at + len(fold(name)))


def _denied_at(sentence: str, start: int, end: int) -> bool:
    return bool(_NEGATION.search(sentence[:start]) or _REJECTED_AFTER.search(sentence[end:]))


@dataclass(frozen=True)
class Conclusion:
    """A level's name, or None, with why."""

    name: str | None
    why: str


def consistency_reply(request: ChatRequest, dice: random.Random) -> Reply:
    """Country, region and place as JSON; pictures are refused before this."""
    support = read_reasoning(reasoning_in(request))
    conclusions = conclude(support)
    slips = {level: dice.random() < SLIP_RATE for level in conclusions}
    known = {level: (None if slips[level] else conclusion.name) or UNKNOWN for level, conclusion in conclusions.items()}
    whys = "; ".join(conclusion.why for conclusion in conclusions.values())
    if support.suspicious:
        whys += "; sentences that address the reader were left out"
    return Reply(json.dumps({**known, "reason": whys}, ensure_ascii=False))


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
    implied = set(support.stated)
    for code, weight in support.regions.items():
        odds[code[:2]] = odds.get(code[:2], 0.0) + IMPLIED * weight
        implied.add(code[:2])
    for place, weight in _strongest(support).items():
        odds[place.country] = odds.get(place.country, 0.0) + IMPLIED * weight
        implied.add(place.country)
    open_odds = {code: score for code, score in odds.items() if fold(country_name(code)) not in support.denied}
    ranked = sorted(open_odds, key=lambda code: (-open_odds[code], code))
    best = ranked[0]
    lead = open_odds[best] - open_odds[ranked[1]]
    if best in support.stated and open_odds[best] >= COUNTRY_FROM / 2:
        return best, f"{country_name(best)} is named"
    if open_odds[best] >= COUNTRY_FROM and lead >= CLUE_LEAD:
        told = "; ".join(list(dict.fromkeys(support.evidence.notes))[:3])
        named = "a place named lies there" if best in implied else ""
        return best, f"{country_name(best)} fits: {told or named}"
    return None, "no country is supported"


def _strongest(support: Support) -> dict[Place, float]:
    """Of namesakes only the likeliest: 'London' is one mention, not ten."""
    best: dict[str, tuple[float, Place]] = {}
    for place, weight in support.places.items():
        key = fold(place.name)
        if fold(place.name) not in support.denied and (key not in best or weight > best[key][0]):
            best[key] = (weight, place)
    return {place: weight for weight, place in best.values()}


def _place(support: Support, country: str | None) -> tuple[Place | None, str]:
    lands = {fold(facts.name) for facts in countries().values()}
    regions = {code: fold(admin1_names()[code]) for code in support.regions if code[:2] == country}
    odds: dict[Place, float] = {}
    for place, weight in support.places.items():
        name, own = fold(place.name), _region_code(place)
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
    own = _region_code(place) if place else ""
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
    if best in support.regions:
        return names[best], f"{names[best]} is named"
    return names[best], f"{place.name if place else ''} lies in {names[best]}"


def _region_code(place: Place) -> str:
    source, names = gazetteer(), place_names()
    rows = [row for row in names.primary.get(fold(place.name), ()) if names.places[row] is place]
    return source.region_code(rows[0]) if rows else ""
