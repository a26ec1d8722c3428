"""The consistency reader: reads only a reasoning and says, level by level, what it supports (GeoAgent 4.3)."""

import json
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from infra.offline.chat.beliefs import match_weight
from infra.offline.chat.clues import LANGUAGE_NAMES, read_evidence, road_evidence, speakers, street_in
from infra.offline.chat.notes import Notes
from infra.offline.chat.placenames import Place, country_name, longest_names, place_names
from infra.offline.chat.protocol import ChatRequest, Reply
from infra.offline.facts import countries
from infra.offline.gazetteer import admin1_names
from infra.offline.words import fold

STATED, LANGUAGE = 4.0, 1.5  # what the name of a country or division, and that of a language, is worth
HEDGED, BORROWED, OPENING_WORD = 0.5, 0.4, 0.4  # factors on what a mention is worth
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
    r"|as opposed to|different from|no longer)\b[^.;,]{0,50}"
    r"|[^.;,]{0,60}\b(?:is|are|was|could be)\s+(?:ruled out|excluded|unlikely|impossible)",
    re.IGNORECASE,
)
_HEDGE = re.compile(r"\b(?:might|may|could|perhaps|possibly|maybe|(?:cities|countries) like|such as|or|either)\b", re.I)
_SIDE = re.compile(r"\b(?:driv\w+|traffic|cars?|keeps?)\b[^.;]{0,40}\b(?:on|to) the (left|right)\b", re.IGNORECASE)
_CENTRE = re.compile(r"\bcent(?:re|er) lines? (?:is|are|:)\s*(yellow|white)", re.IGNORECASE)
_PHONE = re.compile(r"\+\d[\d ()-]{0,16}")
_AVENUE = re.compile(r"\b(?:avenue|avenida|street|road|rue|via|strasse|calle|rua|boulevard|plaza|square)\b", re.I)


def consistency_reply(request: ChatRequest, dice: random.Random) -> Reply:
    """Country, region and place as JSON; pictures are refused before this."""
    text = request.said_by("user", "assistant", "tool")
    conclusions, suspicious = conclude(_CONCLUSION.sub("\n", text[:MAX_CHARS]))
    known = {
        level: UNKNOWN if name is None or dice.random() < SLIP_RATE else name
        for level, (name, _) in conclusions.items()
    }
    whys = "; ".join(why for _, why in conclusions.values())
    if suspicious:
        whys += "; sentences that address the reader were left out"
    return Reply(json.dumps({**known, "reason": whys}, ensure_ascii=False))


def conclude(text: str) -> tuple[dict[str, tuple[str | None, str]], int]:
    """(name or None, why) that a reasoning supports at each level, and how many of its sentences speak to its reader.

    These give nothing. A finer level may speak for a coarser one, never the reverse.
    """
    notes = Notes()
    sentences = [_DENIED.sub(" ", sentence) for line in text.splitlines() for sentence in notes.facts_only(line)]
    weights: dict[str | Place, float] = defaultdict(float)  # of countries and divisions by their codes, and of towns
    for sentence in sentences:
        firmness = HEDGED if _HEDGE.search(sentence) else 1.0
        for thing, weight in _names_in(sentence):
            weights[thing] += weight * firmness
    codes = {code: weight for code, weight in weights.items() if isinstance(code, str)}
    towns = {town: weight for town, weight in weights.items() if isinstance(town, Place)}
    country, country_why = _country(sentences, codes, towns)
    regions = {code: codes[code] for code in codes if "." in code and country in (None, code[:2])}
    odds = {
        place: weight + (SAME_REGION if place.division in regions else -OTHER_REGION if regions else 0.0)
        for place, weight in towns.items()
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


def _country(sentences: list[str], codes: dict[str, float], towns: dict[Place, float]) -> tuple[str | None, str]:
    text = " ".join(sentences)
    quotes = [quote for sentence in sentences for quote in _QUOTED.findall(sentence)]
    evidence = read_evidence(dict.fromkeys([*quotes, *_PHONE.findall(_QUOTED.sub(" ", text))]))
    side, centre = (found[1].lower() if (found := rule.search(text)) else None for rule in (_SIDE, _CENTRE))
    road_evidence(evidence, side=side, centre=centre)
    for tag, name in LANGUAGE_NAMES.items():
        if re.search(rf"\b{re.escape(name)}\b", text):
            evidence.favour(speakers().get(tag, {}), LANGUAGE)
    # Of namesakes only the likeliest: 'London' is one mention, not ten.
    likeliest = {place.name: place.country for place in sorted(towns, key=lambda place: towns[place])}
    finer = [(code[:2], weight) for code, weight in codes.items() if "." in code]
    finer += [(place.country, weight) for place, weight in towns.items() if likeliest[place.name] == place.country]
    odds = {code: evidence.score(code) + codes.get(code, 0.0) for code in countries()}
    for code, weight in finer:
        odds[code] = odds.get(code, 0.0) + IMPLIED * weight
    ranked = sorted(odds, key=lambda code: (-odds[code], code))
    best, lead = ranked[0], odds[ranked[0]] - odds[ranked[1]]
    if best in codes and odds[best] >= COUNTRY_FROM / 2:
        return best, f"{country_name(best)} is named"
    if odds[best] >= COUNTRY_FROM and lead >= CLUE_LEAD:
        return best, f"{country_name(best)} fits: {'; '.join(evidence.notes[:3]) or 'a place named lies there'}"
    return None, "no country is supported"


def _names_in(sentence: str) -> Iterator[tuple[str | Place, float]]:
    """What the longest names in a sentence may mean, each with what it is worth.

    Some village is called Lebanon; a text that says Lebanon means the country.
    """
    names = place_names()

    def find(phrase: str) -> list[tuple[str | Place, float]]:
        if not phrase[0].isupper() and phrase.isascii():
            return []  # most words of prose are some village's name, but names have capitals
        if country := names.index.country(phrase):
            return [(country, STATED)]
        towns = ((match.place, match_weight(match)) for match in names.known(phrase, fuzzy=False))
        return [*((code, STATED) for code in names.index.divisions(phrase)), *towns]

    signs = [match.span(1) for match in _QUOTED.finditer(sentence)]
    opening = len(sentence) - len(re.sub(r"^\W+", "", sentence))
    for at, name, named in longest_names(sentence, find):
        sign = next((sentence[start:end] for start, end in signs if start <= at < end), "")
        street = street_in(sign)
        factor = 1.0
        if _AVENUE.search(sign) or (street and fold(name) in fold(street[0])):
            factor = BORROWED  # streets are called after other towns
        elif at == opening and " " not in name:
            factor = OPENING_WORD  # the first word has its capital anyway
        yield from ((thing, weight * factor) for thing, weight in named)


def _folded(codes: Iterable[str]) -> set[str]:
    return {fold(admin1_names()[code]) for code in codes}
