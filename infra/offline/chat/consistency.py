"""The consistency reader: reads only a reasoning and says, level by level, what it supports (GeoAgent 4.3)."""

import json
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache

from infra.offline.chat.beliefs import match_weight
from infra.offline.chat.clues import (
    LANGUAGE_NAMES,
    countries_in,
    read_evidence,
    road_evidence,
    speakers,
    street_in,
)
from infra.offline.chat.notes import Notes
from infra.offline.chat.placenames import Place, country_name, longest_names, place_names
from infra.offline.chat.protocol import ChatRequest, Reply
from infra.offline.facts import countries
from infra.offline.gazetteer import admin1_names
from infra.offline.words import fold

STATED, LANGUAGE = 4.0, 1.5  # what the name of a country or division, and that of a language, is worth
FIRM, HEDGED, BORROWED, OPENING_WORD = 1.5, 0.5, 0.4, 0.4  # factors on what a mention is worth
MAX_CHARS = 40_000
UNKNOWN = "unknown"
COUNTRY_FROM, CLUE_LEAD = 3.0, 2.5  # support a country needs; lead it needs where only clues speak for it
PLACE_FROM, SAME_REGION, OTHER_REGION = 3.0, 2.0, 1.5
IMPLIED = 0.5  # a town or division speaks for its country half as much as for itself
SLIP_RATE = 0.04  # how often it misses what a level says

_CONCLUSION = re.compile(r"<answer[^<>]{0,80}>.*?(?:</answer\s*>|\Z)|</?think>", re.IGNORECASE | re.DOTALL)
_QUOTED = re.compile(r"(?<!\w)['\"‘“«]([^'\"‘’“”«»\n]{2,80}(?:['’]\w[^'\"‘’“”«»\n]{0,60})?)['\"’”»](?!\w)")
_DENIED = re.compile(
    r"\b(?:not|never|neither|nor|rather than|instead of|unlike|exclud\w+|rul(?:es?|ed|ing) out|isn't|can't be|unlikely"
    r"|as opposed to|different from|no longer)\b[^.;,]{0,50}$",
    re.IGNORECASE,
)
_REJECTED = re.compile(r"^[^.;,]{0,30}\b(?:is|are|was|could be)\s+(?:ruled out|excluded|unlikely|impossible)", re.I)
_HEDGE = re.compile(r"\b(?:might|may|could|perhaps|possibly|maybe|(?:cities|countries) like|such as|or|either)\b", re.I)
_SURE = re.compile(r"\b(?:settle on|conclu\w+|therefore|strongly|clearly|point(?:s|ing)? to|indicates?)\b", re.I)
_SIDE = re.compile(r"\b(?:driv\w+|traffic|cars?|keeps?)\b[^.;]{0,40}\b(?:on|to) the (left|right)\b", re.IGNORECASE)
_CENTRE = re.compile(r"\bcent(?:re|er) lines? (?:is|are|:)\s*(yellow|white)", re.IGNORECASE)
_PHONE = re.compile(r"\+\d[\d ()-]{0,16}")
_AVENUE = re.compile(r"\b(?:avenue|avenida|street|road|rue|via|strasse|calle|rua|boulevard|plaza|square)\b", re.I)
# Parts of the world that some village somewhere is called after.
_WIDE = re.compile(r"asia|europe|africa|america|oceania|arctic|java|sumatra|borneo|scandinavia|balkans")
_DIVISION = re.compile(
    r"\b(?:province|state|region|oblast|county|prefecture|department|governorate|district|territory|canton|municipality)\b"
)


def consistency_reply(request: ChatRequest, dice: random.Random) -> Reply:
    """Country, region and place as JSON; pictures are refused before this."""
    text = request.said_by("user", "assistant", "tool")
    conclusions, suspicious = conclude(_CONCLUSION.sub("\n", text[:MAX_CHARS]))
    known = {level: name or UNKNOWN for level, (name, _) in conclusions.items()}
    known = {level: UNKNOWN if dice.random() < SLIP_RATE else name for level, name in known.items()}
    whys = "; ".join(why for _, why in conclusions.values())
    if suspicious:
        whys += "; sentences that address the reader were left out"
    return Reply(json.dumps({**known, "reason": whys}, ensure_ascii=False))


def conclude(text: str) -> tuple[dict[str, tuple[str | None, str]], int]:
    """(name or None, why) that a reasoning supports at each level, and how many of its sentences speak to its reader.

    These give nothing. A finer level may speak for a coarser one, never the reverse.
    """
    notes = Notes()
    sentences = [sentence for line in text.splitlines() for sentence in notes.facts_only(line)]
    weights: dict[object, float] = defaultdict(float)  # of towns, and of countries and divisions by their codes
    denied: set[str] = set()
    for sentence in sentences:
        firmness = HEDGED if _HEDGE.search(sentence) else FIRM if _SURE.search(sentence) else 1.0
        for name, at, thing, weight in [*_lands_in(sentence), *_places_in(sentence)]:
            if _is_denied(sentence, at, name):
                denied.add(fold(name))
            else:
                weights[thing] += weight * firmness
    lands = {fold(facts.name): code for code, facts in countries().items()}
    codes = {code: weight for code, weight in weights.items() if isinstance(code, str)}
    # Some village is called Lebanon; a text that says Lebanon means the country.
    places = {
        place: weight
        for place, weight in weights.items()
        if isinstance(place, Place)
        and fold(place.name) not in denied
        and lands.get(fold(place.name), place.country) == place.country
    }
    country, country_why = _country(sentences, codes, places, denied)
    regions = {code: codes[code] for code in codes if "." in code and country in (None, code[:2])}
    odds = {
        place: weight + (SAME_REGION if place.division in regions else -OTHER_REGION if regions else 0.0)
        for place, weight in places.items()
        if country in (None, place.country) and (fold(place.name) not in _folded(regions) or place.division in regions)
    }
    likeliest = max(odds, key=lambda place: (odds[place], place.population, place.name), default=None)
    town = likeliest if likeliest is not None and odds[likeliest] >= PLACE_FROM else None
    if country is None and town is not None:
        country, country_why = town.country, f"{town.name} lies in {country_name(town.country)}"
    # A division that is called as the town is the town's own.
    likely = [c for c in regions if town is None or c == town.division or _folded([c]) != {fold(town.name)}]
    region = max(likely, key=lambda code: (regions[code], code), default=town.division if town else "")
    region_name = admin1_names().get(region)
    region_why = "is named" if region in regions else f"holds {town.name}" if town else ""
    return {
        "country": (country_name(country) if country else None, country_why),
        "region": (region_name, f"{region_name} {region_why}" if region_name else "no region is supported"),
        "place": (town.name if town else None, f"{town.name} is named" if town else "no place is named"),
    }, notes.suspicious


def _country(
    sentences: list[str], codes: dict[str, float], places: dict[Place, float], denied: set[str]
) -> tuple[str | None, str]:
    text = " ".join(sentences)
    quotes = [quote for sentence in sentences for quote in _QUOTED.findall(sentence)]
    evidence = read_evidence(dict.fromkeys([*quotes, *_PHONE.findall(_QUOTED.sub(" ", text))]))
    side, centre = (found[1].lower() if (found := rule.search(text)) else None for rule in (_SIDE, _CENTRE))
    road_evidence(evidence, side=side, centre=centre)
    for tag, name in LANGUAGE_NAMES.items():
        if (found := re.search(rf"\b{re.escape(name)}\b", text)) and not _is_denied(text, found.start(), name):
            evidence.favour(speakers().get(tag, {}), LANGUAGE)
    # Of namesakes only the likeliest: 'London' is one mention, not ten.
    likeliest: dict[str, tuple[float, str]] = {}
    for place, weight in places.items():
        likeliest[place.name] = max(likeliest.get(place.name, (0.0, "")), (weight, place.country))
    odds = {code: evidence.score(code) + codes.get(code, 0.0) for code in countries()}
    finer = [(weight, code[:2]) for code, weight in codes.items() if "." in code]
    for weight, code in [*finer, *likeliest.values()]:
        odds[code] = odds.get(code, 0.0) + IMPLIED * weight
    ranked = sorted((c for c in odds if fold(country_name(c)) not in denied), key=lambda code: (-odds[code], code))
    best, lead = ranked[0], odds[ranked[0]] - odds[ranked[1]]
    if best in codes and odds[best] >= COUNTRY_FROM / 2:
        return best, f"{country_name(best)} is named"
    if odds[best] >= COUNTRY_FROM and lead >= CLUE_LEAD:
        return best, f"{country_name(best)} fits: {'; '.join(evidence.notes[:3]) or 'a place named lies there'}"
    return None, "no country is supported"


def _is_denied(sentence: str, start: int, name: str) -> bool:
    return bool(_DENIED.search(sentence[:start]) or _REJECTED.search(sentence[start + len(name) :]))


def _lands_in(sentence: str) -> Iterator[tuple[str, int, str, float]]:
    """(name, start, code, weight) of the countries and divisions a sentence names; of divisions the longest names."""
    for code in sorted(countries_in(sentence)):
        name = countries()[code].name
        yield name, max(0, sentence.find(name)), code, STATED

    def divisions(phrase: str) -> list[str]:
        return _divisions().get(_bare(phrase), []) if phrase[0].isupper() else []

    opening = len(sentence) - len(re.sub(r"^\W+", "", sentence))
    for at, name, codes in longest_names(sentence, divisions):
        if at > opening or " " in name:  # the first word has its capital anyway
            yield from ((name, at, code, STATED) for code in codes)


@lru_cache(maxsize=1)
def _divisions() -> dict[str, list[str]]:
    """Folded name of a division without its kind to its codes."""
    codes_by_name: dict[str, list[str]] = defaultdict(list)
    for code, name in admin1_names().items():
        codes_by_name[_bare(name)].append(code)
    return codes_by_name


def _bare(name: str) -> str:
    """A division's folded name without its kind."""
    return " ".join(_DIVISION.sub(" ", fold(name)).replace(" of ", " ").split()) or fold(name)


def _folded(codes: Iterable[str]) -> set[str]:
    return {fold(admin1_names()[code]) for code in codes}


def _places_in(sentence: str) -> Iterator[tuple[str, int, Place, float]]:
    """(name, start, place, weight) of the towns a sentence names."""
    signs = [(m.start(1), m.end(1), m.group(1)) for m in _QUOTED.finditer(sentence)]
    for match in place_names().mentions(sentence, fuzzy=False):
        at = sentence.find(match.seen)
        if not match.is_name or _WIDE.fullmatch(fold(match.seen)):
            continue
        sign = next((text for start, end, text in signs if start <= at < end), "")
        street = street_in(sign)
        weight = match_weight(match)
        if _AVENUE.search(sign) or (street and fold(match.seen) in fold(street[0])):
            weight *= BORROWED  # streets are called after other towns
        elif at == 0 and " " not in match.seen:
            weight *= OPENING_WORD
        yield match.seen, at, match.place, weight
