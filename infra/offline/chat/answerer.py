"""The base answerers: one look at one picture, one answer. They differ in what they can use of it."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass

from infra.offline.chat.beliefs import match_weight
from infra.offline.chat.clues import Evidence, read_evidence, road_evidence, street_in
from infra.offline.chat.errors import bad
from infra.offline.chat.placenames import Place, fold, place_names
from infra.offline.chat.protocol import ChatRequest
from infra.offline.chat.reply import Reply
from infra.offline.chat.schema import fill
from infra.offline.chat.sight import Look, look
from infra.offline.facts import countries

KM_PER_DEGREE = 111.2


@dataclass(frozen=True)
class Skill:
    """What one answerer is capable of."""

    reads_from_px: float | None  # smallest line it reads, at 1024 px picture width; None: only letter shapes
    knows_population: int  # the smallest town whose name it knows
    misread_rate: float  # chance per letter of reading another
    weighs_road: bool  # whether it uses road rules to choose among namesakes
    doubt: float  # spread of its second thoughts at temperature 1, in log-odds
    vague_km: float  # how far off it remembers a city's coordinates
    garbled_rate: float  # unparsable or refused answers when sampled


SMALL = Skill(None, 300_000, 0.0, True, 1.6, 60.0, 0.05)
BASE = Skill(11.0, 50_000, 0.015, False, 1.2, 6.0, 0.03)
LARGE = Skill(6.0, 5_000, 0.0, True, 0.8, 1.2, 0.02)


def small(request: ChatRequest, dice: random.Random) -> Reply:
    return _speak(request, dice, SMALL)


def base(request: ChatRequest, dice: random.Random) -> Reply:
    return _speak(request, dice, BASE)


def large(request: ChatRequest, dice: random.Random) -> Reply:
    return _speak(request, dice, LARGE)


def _speak(request: ChatRequest, dice: random.Random, skill: Skill) -> Reply:
    if not request.pictures:
        raise bad("This model needs an image: send an image_url part.", "messages", "image_required")
    warmth = request.temperature
    seen = look(request.pictures[-1])
    lines = _read(seen, skill, dice)
    evidence = read_evidence(lines if skill.reads_from_px is not None else [])
    if skill.reads_from_px is None:
        _letter_shapes(seen, evidence)
    if skill.weighs_road or not lines:
        scene = seen.scene
        road_evidence(evidence, side=scene.side, centre=scene.centre, edge=scene.edge, sign=scene.sign)
    place, why = _choose(lines, evidence, skill, dice, warmth)
    lat, lon = _recall(place, skill, dice)
    if warmth > 0 and dice.random() < skill.garbled_rate * min(1.0, warmth):
        return _garbled(place, dice)
    answer = {
        "lat": round(lat, 4),
        "lon": round(lon, 4),
        "city": place.name,
        "country": countries()[place.country].name if place.country in countries() else place.country,
    }
    if request.response_schema is not None:
        return Reply(fill(request.response_schema, answer | {"latitude": answer["lat"], "longitude": answer["lon"]}))
    reasons = "; ".join(dict.fromkeys(evidence.notes[:4])) or "there is little to go by"
    thought = f"{reasons[0].upper()}{reasons[1:]}. {why}"
    return Reply(f"<think>{thought}</think><answer>{json.dumps(answer, ensure_ascii=False)}</answer>")


def _read(seen: Look, skill: Skill, dice: random.Random) -> list[str]:
    """The lines big enough for these eyes, with the slips of these eyes."""
    if skill.reads_from_px is None:
        return []
    limit = skill.reads_from_px * seen.width / 1024
    return [_misread(line.text, skill, dice) for line in seen.readable if line.height >= limit]


def _misread(text: str, skill: Skill, dice: random.Random) -> str:
    letters = "aeinorstul"
    return "".join(
        dice.choice(letters) if char.isalpha() and char.isascii() and dice.random() < skill.misread_rate else char
        for char in text
    )


def _letter_shapes(seen: Look, evidence: Evidence) -> None:
    """The script of the largest lines, without reading them."""
    for line in seen.readable[:4]:
        for char in line.text:
            if 0x3040 <= ord(char) < 0x3100:
                evidence.favour(["JP"], 1.5)
            elif 0x4E00 <= ord(char) < 0xA000:
                evidence.favour(["CN", "TW", "HK", "JP"], 0.4)
            elif 0x0370 <= ord(char) < 0x0400:
                evidence.favour(["GR", "CY"], 0.7)


def _choose(
    lines: list[str], evidence: Evidence, skill: Skill, dice: random.Random, warmth: float
) -> tuple[Place, str]:
    """The likeliest city; at a temperature every option's odds are shaken before the best is taken."""
    names = place_names()
    odds: dict[Place, float] = {}
    for line in lines:
        street = street_in(line)
        for match in names.mentions(line):
            if match.place.population < skill.knows_population:
                continue
            hidden = street is not None and fold(match.seen) in fold(street[0])
            weight = match_weight(match) - (2.5 if hidden else 0.0) + evidence.score(match.place.country)
            odds[match.place] = max(odds.get(match.place, -math.inf), weight)
    shaken = {place: score + warmth * skill.doubt * _gumbel(dice) for place, score in odds.items()}
    # Without a name that convinces, the country's big cities are the fallback, and they always compete.
    for code, score in evidence.ranked()[:12]:
        listed = names.biggest(code)
        cities = [city for city in listed if city.population >= skill.knows_population][:5] or listed[:1]
        for rank, city in enumerate(cities):
            value = score - 0.7 * rank + warmth * skill.doubt * _gumbel(dice)
            if city not in odds and value > shaken.get(city, -math.inf):
                shaken[city] = value
    best = max(shaken, key=lambda place: shaken[place])
    if best in odds:
        return best, f"The name of {best.name} is readable."
    return best, f"No place name convinces me, so I take a large city: {best.name}."


def _gumbel(dice: random.Random) -> float:
    return -math.log(-math.log(min(max(dice.random(), 1e-9), 1 - 1e-9)))


def _recall(place: Place, skill: Skill, dice: random.Random) -> tuple[float, float]:
    """The city's coordinates as this model remembers them."""
    away_km = abs(dice.gauss(0, skill.vague_km))
    bearing = dice.uniform(0, 2 * math.pi)
    lat = place.lat + away_km / KM_PER_DEGREE * math.cos(bearing)
    lon = place.lon + away_km / KM_PER_DEGREE * math.sin(bearing) / max(0.1, math.cos(math.radians(place.lat)))
    return max(-89.9, min(89.9, lat)), (lon + 180) % 360 - 180


def _garbled(place: Place, dice: random.Random) -> Reply:
    """An answer no parser should turn into a point."""
    way = dice.randrange(3)
    if way == 0:
        return Reply("I'm sorry, but I can't determine where this picture was taken.")
    if way == 1:
        return Reply(f"<think>It could be {place.name}.</think><answer>Somewhere near {place.name}, perhaps.</answer>")
    return Reply(f'<think>It looks like {place.name}.</think><answer>{{"lat": "unknown", "city": "{place.name}"')
