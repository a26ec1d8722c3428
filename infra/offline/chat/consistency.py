"""The consistency reader: reads only a reasoning and says, level by level, what it supports (GeoAgent 4.3)."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from infra.offline.chat.placenames import Place, fold, place_names
from infra.offline.chat.protocol import ChatRequest
from infra.offline.chat.reasoning import Support, read_reasoning, reasoning_in
from infra.offline.chat.reply import Reply
from infra.offline.chat.schema import fill
from infra.offline.facts import countries
from infra.offline.gazetteer import admin1_names, gazetteer

UNKNOWN = "unknown"
COUNTRY_FROM, CLUE_LEAD = 3.0, 2.5  # support a country needs; lead it needs where only clues speak for it
REGION_FROM, PLACE_FROM = 2.0, 3.0
SAME_COUNTRY, SAME_REGION, OTHER_REGION = 3.0, 2.0, 1.5
IMPLIED = 0.5  # a town named for certain speaks for its country half as much as for itself
SLIP_RATE = 0.04  # how often it misses what a level says
_ALIASES = {
    "country": ("country", "country_name", "nation"),
    "region": ("region", "state", "province", "admin1", "region_name"),
    "place": ("place", "city", "precise_location", "specific_location", "location", "town", "place_name"),
}


@dataclass(frozen=True)
class Conclusion:
    """A level's name, or None, with why."""

    name: str | None
    why: str


def speak(request: ChatRequest, dice: random.Random) -> Reply:
    """Country, region and place as JSON, in the asked schema or in its own; pictures are refused before this."""
    support = read_reasoning(reasoning_in(request))
    found = conclude(support)
    slips = {level: dice.random() < SLIP_RATE for level in found}
    known: dict[str, Any] = {}
    for level, conclusion in found.items():
        name = None if slips[level] else conclusion.name
        for alias in _ALIASES[level]:
            known[alias] = name if name is not None or _nullable(request.response_schema, alias) else UNKNOWN
    whys = "; ".join(conclusion.why for conclusion in found.values())
    if support.suspicious:
        whys += "; sentences that address the reader were left out"
    if not request.response_schema:
        own = {level: known[level] for level in found}
        return Reply(json.dumps({**own, "reason": whys}, ensure_ascii=False))
    return Reply(fill(request.response_schema, {**known, "reason": whys, "explanation": whys, "reasoning": whys}))


def conclude(support: Support) -> dict[str, Conclusion]:
    """What the reasoning supports at each level; a finer level may speak for a coarser one, never the reverse."""
    country, country_why = _country(support)
    place, place_why = _place(support, country)
    if country is None and place is not None:
        country, country_why = place.country, f"{place.name} lies in {_country_name(place.country)}"
    region, region_why = _region(support, country, place)
    return {
        "country": Conclusion(_country_name(country) if country else None, country_why),
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
    open_odds = {code: score for code, score in odds.items() if fold(_country_name(code)) not in support.denied}
    ranked = sorted(open_odds, key=lambda code: (-open_odds[code], code))
    best = ranked[0]
    lead = open_odds[best] - open_odds[ranked[1]]
    if best in support.stated and open_odds[best] >= COUNTRY_FROM / 2:
        return best, f"{_country_name(best)} is named"
    if open_odds[best] >= COUNTRY_FROM and lead >= CLUE_LEAD:
        told = "; ".join(list(dict.fromkeys(support.evidence.notes))[:3])
        named = "a place named lies there" if best in implied else ""
        return best, f"{_country_name(best)} fits: {told or named}"
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
        # Some village is called Lebanon; who writes Lebanon means the country, or the region, not the village.
        if name in support.denied or name in lands - {fold(_country_name(place.country))}:
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


def _country_name(code: str) -> str:
    facts = countries().get(code)
    return facts.name if facts else code


def _nullable(schema: dict[str, Any] | None, name: str) -> bool:
    """Whether the asked schema has a way of its own to say that a level is not known."""
    properties = (schema or {}).get("properties")
    part = properties.get(name) if isinstance(properties, dict) else None
    if not isinstance(part, dict):
        return False
    listed = part.get("anyOf") or part.get("oneOf") or []
    kinds = [part, *(option for option in listed if isinstance(option, dict))] if isinstance(listed, list) else [part]
    return any(kind.get("type") == "null" or "null" in (kind.get("type") or ()) for kind in kinds)
