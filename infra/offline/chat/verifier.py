"""The verifier: one picture, several agents' trajectories, the answer its own eyes find best supported."""

import json
import math
import random
import re
from dataclasses import dataclass
from typing import Any

from infra.offline.chat.answer_form import Answer
from infra.offline.chat.beliefs import Belief, cities_in_passage, city_odds, country_name, weigh_notes
from infra.offline.chat.clues import countries_in
from infra.offline.chat.notes import Notes, facts_only, read_texts
from infra.offline.chat.observer import describe
from infra.offline.chat.placenames import Place, apart_km, fold, place_names
from infra.offline.chat.protocol import ChatRequest
from infra.offline.chat.reply import Reply
from infra.offline.chat.sight import look_at_picture
from infra.offline.facts import countries
from infra.offline.gazetteer import gazetteer

MAX_CANDIDATES = 32
MAX_CHARS, MAX_PASSAGES = 40_000, 80  # of one trajectory; what comes before or after is not read
MAX_NAME = 120

_HEADING = re.compile(
    r"^[ \t>#*\[(=-]{0,8}(?:candidate|trajectory|agent|sample|solution|response|attempt|rollout|answer|path)s?"
    r"(?:[ \t]+(?:answer|trajectory|response|agent|solution))?[ \t]*(?:#|no\.?|number)?[ \t]*_?(?:\d{1,3}|[A-H])\b",
    re.IGNORECASE | re.MULTILINE,
)
_ANSWER = re.compile(r"<answer[^<>]{0,80}>(.*?)(?:</answer\s*>|\Z)", re.IGNORECASE | re.DOTALL)
_OBJECT = re.compile(r"\{[^{}]{2,2000}\}")
_LABELLED = re.compile(r"^[ \t*>-]*([A-Za-z][A-Za-z_ ]{2,24}?)[ \t*]*:[ \t*]*(\S[^\n]*)$", re.MULTILINE)
_PAIR = re.compile(r"(-?\d{1,2}\.\d+)\s*°?\s*,\s*(-?\d{1,3}\.\d+)")
_TAG = re.compile(r"</?(?:think|answer|tool_call|tool_response|candidate|trajectory)[^<>]{0,80}>", re.IGNORECASE)
_ROLE = re.compile(r"^\s*(?:assistant|tool|user|system|observer|planner|thought|action|observation)\s*:", re.I | re.M)
_LAT, _LON = ("lat", "latitude"), ("lon", "lng", "long", "longitude")
_REGION, _CITY = ("region", "state", "province", "admin1"), ("city", "place", "town", "location", "specific_location")
MAX_LOOKS = 4  # a picture and its first crops; each new one takes a second
SAME_KM = 25.0
AGREES, AGREES_MOST = 0.8, 2.0  # what each other agent at the same place adds, and all of them together
PAGES, PAGES_MOST = 0.6, 4.0  # pages quoted in a trajectory count less than signs seen in the picture
SEEN_TOO, NOT_SEEN, CLAIMS_MOST = 0.5, 0.3, 1.5  # writing a trajectory quotes, which the picture has or has not
SELF_CONTRADICTION = 2.0  # the point lies in another country than the answer names
OWN_LEAD = 4.0  # by how much its own reading must beat every candidate before it answers for itself
DOUBT = 0.4  # spread of its second thoughts at temperature 1, in log-odds
SLIP_RATE = 0.05  # how often it takes the second best
_QUOTED = re.compile(r"['\"“”«»]([^'\"“”«»\n]{3,60})['\"“”«»]")


@dataclass(frozen=True)
class Candidate:
    """One trajectory that ends in a usable answer. Names are what it claims; `code` is where its point lies."""

    number: int  # as the request counts them, from 1
    lat: float
    lon: float
    code: str  # ISO 3166 alpha-2 of the country nearest to the point
    country: str
    region: str
    city: str
    passages: tuple[str, ...]  # what it says, less what it says to its reader
    suspicious: int  # sentences that speak to a model


def read_candidates(request: ChatRequest) -> tuple[list[Candidate], int]:
    """The candidates that can be placed on Earth, and how many trajectories were sent in all."""
    parts = _segments(request)[:MAX_CANDIDATES]
    candidates = [_read(number, part) for number, part in enumerate(parts, 1)]
    return [candidate for candidate in candidates if candidate is not None], len(parts)


def _segments(request: ChatRequest) -> list[str]:
    """The text of each trajectory: by headings, else by answer blocks, else by JSON objects with a latitude."""
    text = "\n\n".join(m.text for m in request.messages if m.role not in ("system", "developer") and m.text)
    heads = [m.start() for m in _HEADING.finditer(text)]
    if heads:
        parts = [text[a:b] for a, b in zip(heads, [*heads[1:], len(text)], strict=True)]
        # "Candidate 1 ... Answer 1: ..." is one trajectory with two headings: what has no end belongs to the next.
        joined: list[str] = []
        for part in parts:
            if joined and _last_answer(joined[-1]) is None and part.lstrip(" \t>#*[(=-").lower().startswith("answer"):
                joined[-1] += part
            else:
                joined.append(part)
        return joined
    for pattern in (_ANSWER, _OBJECT):
        ends = [m.end() for m in pattern.finditer(text) if _fields(m.group(m.lastindex or 0))]
        if ends:
            return [text[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    return []


def _last_answer(part: str) -> dict[str, Any] | None:
    """What a trajectory finally answers: its last answer block, or without one its last object with a place."""
    blocks = [m.group(1) for m in _ANSWER.finditer(part)]
    if blocks:
        return _fields(blocks[-1])
    objects = [fields for m in _OBJECT.finditer(part) if (fields := _fields(m.group()))]
    return objects[-1] if objects else None


def _fields(text: str) -> dict[str, Any] | None:
    """The place a text gives: JSON, labelled lines, a pair of coordinates, or `Country; Region; Place`."""
    for matched in reversed(list(_OBJECT.finditer(text))):
        try:
            value = json.loads(matched.group())
        except (json.JSONDecodeError, RecursionError):
            continue
        if isinstance(value, dict) and (placed := _placed(value)):
            return placed
    pair = _PAIR.search(text)
    point = _point(pair.group(1), pair.group(2)) if pair else None
    placed = _placed({label.replace(" ", "_"): line.strip(" \t*°") for label, line in _LABELLED.findall(text)})
    if placed or point:
        placed = placed or {"point": None, "country": "", "region": "", "city": ""}
        return {**placed, "point": placed["point"] or point}
    levels = [level.strip() for level in text.strip().split(";")]
    if 2 <= len(levels) <= 4 and len(text) < 300 and countries_in(levels[0]):
        return {"point": None, "country": levels[0], "region": levels[1], "city": (levels[2:] or [""])[0]}
    return None


def _placed(value: dict[str, Any]) -> dict[str, Any] | None:
    """Point and names of an answer by its fields, if it has any of them."""
    fields = {str(key).lower(): item for key, item in value.items()}
    point = _point(_first(fields, _LAT), _first(fields, _LON))
    names = {"country": _first(fields, ("country",)), "region": _first(fields, _REGION), "city": _first(fields, _CITY)}
    has_name = any(isinstance(name, str) and name for name in names.values())
    return {"point": point, **names} if point or has_name else None


def _read(number: int, part: str) -> Candidate | None:
    fields = _last_answer(part)
    if fields is None:
        return None
    country, region, city = (_name(fields[level]) for level in ("country", "region", "city"))
    point = fields["point"] or _recall(country, city)
    if point is None:
        return None
    lat, lon = point
    row, _ = gazetteer().nearest(lat, lon)[0]
    notes = Notes()
    body = _ROLE.sub("\n", _TAG.sub("\n", _ANSWER.sub("\n", part[-MAX_CHARS:])))
    lines = [line for line in body.splitlines() if line.strip()][:MAX_PASSAGES]
    passages = tuple(" ".join(kept) for kept in (facts_only(line, notes) for line in lines) if kept)
    code = str(gazetteer().country[row])
    return Candidate(number, lat, lon, code, country, region, city, passages, notes.suspicious)


def _recall(country: str, city: str) -> tuple[float, float] | None:
    """Where a place is that was named without coordinates."""
    lands = countries_in(country)
    for match in place_names().named(city) if city else ():
        if not lands or match.place.country in lands:
            return match.place.lat, match.place.lon
    for code in sorted(lands):
        for place in place_names().biggest(code)[:1]:
            return place.lat, place.lon
    return None


def _first(fields: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if fields.get(name) not in (None, "")), "")


def _point(lat: Any, lon: Any) -> tuple[float, float] | None:
    try:
        point = float(lat), float(lon)
    except (TypeError, ValueError):
        return None
    inside = all(math.isfinite(part) for part in point) and abs(point[0]) <= 90 and abs(point[1]) <= 180
    return point if inside else None


def _name(value: Any) -> str:
    """A name as data: one short line without mark-up."""
    return " ".join(re.sub(r"[<>{}]", " ", value).split())[:MAX_NAME] if isinstance(value, str) else ""


def country_label(candidate: Candidate) -> str:
    """The country's usual name; the point decides where the claim names another."""
    known = countries().get(candidate.code)
    if candidate.code in countries_in(candidate.country) or known is None:
        return candidate.country or candidate.code
    return known.name


def verifier_reply(request: ChatRequest, dice: random.Random) -> Reply:
    """Reasoning and the chosen answer."""
    notes = _see(request)
    belief = weigh_notes(notes)
    candidates, sent = read_candidates(request)
    verdict = judge_candidates(candidates, notes, belief, request.temperature, dice)
    reasons = "; ".join(belief.reasons[:5]) or "the picture shows little that is telling"
    told = f"In the picture I see: {reasons}. {len(candidates)} of {sent} candidates can be placed. {verdict.why}"
    if any(candidate.suspicious for candidate in candidates):
        told += " Sentences in the candidates that address me are text, not evidence; I left them out."
    return Reply(f"<think>{told}</think><answer>{json.dumps(verdict.fields, ensure_ascii=False)}</answer>")


@dataclass(frozen=True)
class Judgement:
    """Which candidate is best supported: its number (0: none, the judge's own answer), the answer, and why."""

    number: int
    fields: dict[str, object]
    why: str
    support: float  # log-odds of the chosen answer

    @property
    def answer(self) -> Answer:
        country, region, city = (str(self.fields.get(level) or "") for level in ("country", "region", "city"))
        sure = 1 / (1 + math.exp(-(self.support - 6.0) / 2))
        lat, lon = (float(str(self.fields[axis])) for axis in ("lat", "lon"))
        return Answer(lat, lon, country, region, city, "", max(0.05, min(0.95, sure)), self.why)


def judge_candidates(
    candidates: list[Candidate],
    notes: Notes,
    belief: Belief,
    temperature: float = 0.0,
    dice: random.Random | None = None,
) -> Judgement:
    """Others' answers weighed against what the judge sees itself."""
    odds = city_odds(notes, belief.evidence)
    scores = {c.number: _score(c, candidates, notes, belief, odds) for c in candidates}
    chance = dice or random.Random(0)
    shaken = {n: s + temperature * DOUBT * chance.gauss(0, 1) for n, s in scores.items()}
    ranked = sorted(candidates, key=lambda c: (-shaken[c.number], c.number))
    rivals = [c for c in ranked[1:] if apart_km(c.lat, c.lon, ranked[0].lat, ranked[0].lon) > SAME_KM]
    if rivals and dice is not None and dice.random() < SLIP_RATE:
        ranked = [rivals[0], *(c for c in ranked if c is not rivals[0])]
    answer, why, number = _decide(ranked, scores, belief)
    support = scores.get(number, belief.best.score if belief.best else 0.0)
    return Judgement(number, answer, why, support)


def _see(request: ChatRequest) -> Notes:
    """What the pictures show, as the planner would note it: the scene of the largest, the writing of all."""
    request.last_picture()
    pictures = list({p.sha256: p for p in request.pictures}.values())
    # Pictures of maps are square: what is written there is not in the scene.
    pictures = [p for p in pictures if p.width != p.height] or pictures[:1]
    whole = max(pictures, key=lambda p: p.width * p.height)
    notes = Notes(description=describe(look_at_picture(whole)))
    notes.texts = read_texts(notes.description)
    for crop in [p for p in pictures if p is not whole][: MAX_LOOKS - 1]:
        notes.texts += read_texts(describe(look_at_picture(crop)), zoomed=True)
    return notes


def _score(
    candidate: Candidate,
    others: list[Candidate],
    notes: Notes,
    belief: Belief,
    odds: dict[Place, tuple[float, str]],
) -> float:
    """Log-odds of an answer: the picture first, then quoted pages, honest quotes, and company."""
    near = [score for place, (score, _) in odds.items() if _near(candidate, place)]
    score = max([*near, belief.evidence.score(candidate.code)])
    score += min(PAGES_MOST, PAGES * _pages(candidate, notes))
    score += _quotes(candidate, notes)
    company = [
        o for o in others if o is not candidate and apart_km(o.lat, o.lon, candidate.lat, candidate.lon) < SAME_KM
    ]
    score += min(AGREES_MOST, AGREES * len(company))
    claimed = fold(candidate.country)
    if claimed and claimed not in (fold(country_label(candidate)), candidate.code.lower()):
        score -= SELF_CONTRADICTION
    return score


def _pages(candidate: Candidate, notes: Notes) -> float:
    """How well the best passage ties the picture's own writing to the place answered."""
    return max(
        (
            weight
            for passage in candidate.passages
            for place, weight in cities_in_passage(passage, 0, notes).items()
            if _near(candidate, place)
        ),
        default=0.0,
    )


def _quotes(candidate: Candidate, notes: Notes) -> float:
    """A trajectory that quotes writing the picture has is trusted more than one that quotes what is not there."""
    seen = fold(" / ".join(notes.words))
    if not seen:
        return 0.0
    quoted = {fold(text) for passage in candidate.passages for text in _QUOTED.findall(passage)}
    there = sum(1 for text in quoted if text and text in seen)
    total = SEEN_TOO * there - (NOT_SEEN if quoted and not there else 0.0)
    return min(CLAIMS_MOST, total)


def _decide(ranked: list[Candidate], scores: dict[int, float], belief: Belief) -> tuple[dict[str, object], str, int]:
    """The answer with the reason for it, and the candidate's number (0: its own)."""
    own = belief.best
    if own is not None and (not ranked or own.score - max(scores.values()) > OWN_LEAD):
        lead = "None of them fits what I see" if ranked else "No candidate gives a place"
        answer: dict[str, object] = {"lat": round(own.lat, 5), "lon": round(own.lon, 5)}
        answer |= {"city": own.city, "country": own.country_name}
        return answer, f"{lead}; I answer from the picture: {own.city}, {own.country_name} ({own.why}).", 0
    if not ranked:
        return {"lat": 0.0, "lon": 0.0, "city": "", "country": ""}, "Nothing tells me where this is.", 0
    best = ranked[0]
    mates = [c for c in ranked if apart_km(c.lat, c.lon, best.lat, best.lon) < SAME_KM]
    # Agents at the same place complete each other: one knows the region, another the town.
    city, region = (next((name for c in mates if (name := getattr(c, level))), "") for level in ("city", "region"))
    answer = {"lat": round(best.lat, 5), "lon": round(best.lon, 5), "city": city, "country": country_label(best)}
    if region:
        answer["region"] = region
    named = ", ".join(str(c.number) for c in mates[1:])
    company = f"; candidate {named} agrees" if len(mates) == 2 else f"; candidates {named} agree" if named else ""
    where = f"{city}, {answer['country']}" if city else str(answer["country"])
    rest = _weakest(best, ranked, belief)
    return answer, f"Candidate {best.number} ({where}) is best supported{company}.{rest}", best.number


def _weakest(best: Candidate, ranked: list[Candidate], belief: Belief) -> str:
    """What speaks against the next candidate elsewhere."""
    other = next((c for c in ranked if apart_km(c.lat, c.lon, best.lat, best.lon) > SAME_KM), None)
    if other is None or belief.evidence.score(other.code) >= belief.evidence.score(best.code):
        return ""
    return f" Candidate {other.number} would mean {country_name(other.code)}, which the clues fit less."


def _near(candidate: Candidate, place: Place) -> bool:
    return apart_km(candidate.lat, candidate.lon, place.lat, place.lon) < SAME_KM
