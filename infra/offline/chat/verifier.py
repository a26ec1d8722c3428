"""The verifier: one picture, several agents' trajectories, the answer its own eyes find best supported."""

import itertools
import json
import random
import re
from dataclasses import dataclass, replace
from typing import Any

from infra.offline.chat.answer_form import Answer, field_of
from infra.offline.chat.beliefs import Belief, Odds, cities_in_passage, city_odds, weigh_notes
from infra.offline.chat.clues import countries_in
from infra.offline.chat.notes import Notes
from infra.offline.chat.observer import describe
from infra.offline.chat.placenames import Place, logistic, place_names
from infra.offline.chat.protocol import ChatRequest, Reply
from infra.offline.chat.sight import look_at_picture
from infra.offline.gazetteer import gazetteer
from infra.offline.words import fold
from schemas.messages import json_object

MAX_CANDIDATES = 32
MAX_CHARS, MAX_PASSAGES = 40_000, 80  # of one trajectory; what comes before or after is not read
MAX_NAME = 120

_HEADING = re.compile(r"^[ \t#*]*(?:candidate|trajectory|agent)[ \t]+(?:\d{1,3}|[A-H])\b", re.IGNORECASE | re.MULTILINE)
_ANSWER = re.compile(r"<answer[^<>]{0,80}>(.*?)(?:</answer\s*>|\Z)", re.IGNORECASE | re.DOTALL)
_OBJECT = re.compile(r"\{[^{}]{2,2000}\}")
_LABELLED = re.compile(r"^[ \t*>-]*([A-Za-z][A-Za-z_ ]{2,24}?)[ \t*]*:[ \t*]*(\S[^\n]*)$", re.MULTILINE)
_PAIR = re.compile(r"(-?\d{1,2}\.\d+)\s*°?\s*,\s*(-?\d{1,3}\.\d+)")
_TAG = re.compile(r"</?(?:think|answer|tool_call|tool_response)[^<>]{0,80}>|^\s*(?:assistant|tool|user):", re.I | re.M)
_QUOTED = re.compile(r"['\"“”«»]([^'\"“”«»\n]{3,60})['\"“”«»]")
MAX_LOOKS = 4  # a picture and its largest crops; each new one takes a second
AGREES, AGREES_MOST = 0.8, 2.0  # what each other agent at the same place adds, and all of them together
PAGES, PAGES_MOST = 0.6, 4.0  # pages quoted in a trajectory count less than signs seen in the picture
SEEN_TOO, NOT_SEEN, CLAIMS_MOST = 0.5, 0.3, 1.5  # writing a trajectory quotes, which the picture has or has not
SELF_CONTRADICTION = 2.0  # the point lies in another country than the answer names
OWN_LEAD = 4.0  # by how much its own reading must beat every candidate before it answers for itself
DOUBT = 0.4  # spread of its second thoughts at temperature 1, in log-odds
SLIP_RATE = 0.05  # how often it takes the second best


@dataclass(frozen=True)
class Candidate:
    """One trajectory that ends in a usable answer."""

    number: int  # as the request counts them, from 1
    place: Place  # the claimed town at the claimed point, in the country nearest to the point
    country: str  # as it claims
    region: str
    passages: tuple[str, ...]  # what it says, less what it says to its reader
    suspicious: int  # sentences that speak to a model

    @property
    def country_label(self) -> str:
        """The country's usual name; the point decides where the claim names another."""
        is_claimed = self.place.country in countries_in(self.country)
        return self.country if is_claimed else self.place.country_name


def read_candidates(request: ChatRequest) -> tuple[list[Candidate], int]:
    """The candidates that can be placed on Earth, and how many trajectories were sent in all."""
    text = request.said_by("user", "assistant", "tool")
    heads = [head.start() for head in _HEADING.finditer(text)][:MAX_CANDIDATES]
    parts = [text[start:end] for start, end in itertools.pairwise([*heads, len(text)])]
    candidates = [_read(number, part[-MAX_CHARS:]) for number, part in enumerate(parts, 1)]
    return [candidate for candidate in candidates if candidate is not None], len(parts)


def last_answer(part: str) -> dict[str, Any] | None:
    """What a trajectory finally answers: its last answer block, or without one its last object with a place."""
    blocks = _ANSWER.findall(part)
    texts = blocks[-1:] or reversed(_OBJECT.findall(part))
    return next((fields for text in texts if (fields := _fields(text))), None)


def _fields(text: str) -> dict[str, Any] | None:
    """The place a text gives: JSON, labelled lines, a pair of coordinates, or `Country; Region; Place`."""
    objects = (_placed(value) for found in reversed(_OBJECT.findall(text)) if (value := json_object(found)))
    placed = next((placed for placed in objects if placed), None)
    if placed:
        return placed
    pair = _PAIR.search(text)
    point = _point(pair.group(1), pair.group(2)) if pair else None
    placed = _placed({label: line.strip(" \t*°") for label, line in _LABELLED.findall(text)})
    if placed or point:
        placed = placed or {"point": None, "country": "", "region": "", "city": ""}
        return {**placed, "point": placed["point"] or point}
    levels = [level.strip() for level in text.strip().split(";")]
    if 2 <= len(levels) <= 4 and len(text) < 300 and countries_in(levels[0]):
        return {"point": None, "country": levels[0], "region": levels[1], "city": "".join(levels[2:3])}
    return None


def _placed(value: dict[str, Any]) -> dict[str, Any] | None:
    """Point and names of an answer by its fields, if it has any of them."""
    fields = {field_of(str(key)): item for key, item in reversed(value.items()) if item not in (None, "")}
    names = {level: fields.get(level, "") for level in ("country", "region")}
    names["city"] = next((fields[name] for name in ("city", "place", "location") if name in fields), "")
    point = _point(fields.get("lat"), fields.get("lon"))
    is_placed = point or any(isinstance(name, str) and name for name in names.values())
    return {"point": point, **names} if is_placed else None


def _read(number: int, part: str) -> Candidate | None:
    fields = last_answer(part)
    if fields is None:
        return None
    country, region, city = (_name(fields[level]) for level in ("country", "region", "city"))
    point = fields["point"] or _recall(country, city)
    if point is None:
        return None
    notes = Notes()
    lines = _TAG.sub("\n", _ANSWER.sub("\n", part)).splitlines()
    passages = notes.facts_of([line for line in lines if line.strip()][:MAX_PASSAGES])
    lat, lon = point
    code = str(gazetteer().country[gazetteer().nearest(lat, lon)[0][0]])
    return Candidate(number, Place(city, lat, lon, code), country, region, tuple(passages), notes.suspicious)


def _recall(country: str, city: str) -> tuple[float, float] | None:
    """Where a place is that was named without coordinates."""
    lands = countries_in(country)
    named = [match.place for match in place_names().named(city) if not lands or match.place.country in lands]
    largest = [place for code in sorted(lands) for place in place_names().biggest(code)[:1]]
    return next(((place.lat, place.lon) for place in [*named, *largest]), None)


def _point(lat: Any, lon: Any) -> tuple[float, float] | None:
    try:
        point = float(lat), float(lon)
    except (TypeError, ValueError):
        return None
    return point if abs(point[0]) <= 90 and abs(point[1]) <= 180 else None  # NaN is not


def _name(value: Any) -> str:
    """A name as data: one short line without mark-up."""
    return re.sub(r"[<>{}\s]+", " ", value).strip()[:MAX_NAME] if isinstance(value, str) else ""


def verifier_reply(request: ChatRequest, dice: random.Random) -> Reply:
    """Reasoning and the chosen answer."""
    notes = _see(request)
    belief = weigh_notes(notes)
    candidates, sent = read_candidates(request)
    _, answer = judge_candidates(candidates, notes, belief, request.temperature, dice)
    reasons = "; ".join(belief.reasons[:5]) or "the picture shows little that is telling"
    told = f"In the picture I see: {reasons}. {len(candidates)} of {sent} candidates can be placed. "
    told += answer.explanation
    if any(candidate.suspicious for candidate in candidates):
        told += " Sentences in the candidates that address me are text, not evidence; I left them out."
    named = {level: getattr(answer, level) for level in ("lat", "lon", "city", "country", "region")}
    named = {level: value for level, value in named.items() if level != "region" or value}
    return Reply(f"<think>{told}</think><answer>{json.dumps(named, ensure_ascii=False)}</answer>")


def judge_candidates(
    candidates: list[Candidate],
    notes: Notes,
    belief: Belief,
    temperature: float = 0.0,
    dice: random.Random | None = None,
) -> tuple[int, Answer]:
    """The number of the best supported candidate and its answer, the reason in it; 0: the judge's own answer.

    Others' answers are weighed against what the judge sees itself.
    """
    odds = city_odds(notes, belief.evidence)
    scores = {c.number: _score(c, candidates, notes, belief, odds) for c in candidates}
    chance = dice or random.Random(0)
    shaken = {n: s + temperature * DOUBT * chance.gauss(0, 1) for n, s in scores.items()}
    ranked = sorted(candidates, key=lambda c: (-shaken[c.number], c.number))
    rivals = [c for c in ranked[1:] if not c.place.is_at(ranked[0].place)]
    if rivals and dice is not None and dice.random() < SLIP_RATE:
        ranked = [rivals[0], *(c for c in ranked if c is not rivals[0])]
    own = belief.best
    if own is not None and (not ranked or own.score - max(scores.values()) > OWN_LEAD):
        lead = "None of them fits what I see" if ranked else "No candidate gives a place"
        why = f"{lead}; I answer from the picture: {own.place.full_name} ({own.why})."
        point = round(own.place.lat, 5), round(own.place.lon, 5)
        return 0, Answer(*point, own.place.country_name, city=own.city, explanation=why)
    if not ranked:
        return 0, Answer(0.0, 0.0, explanation="Nothing tells me where this is.")
    return ranked[0].number, _chosen(ranked, scores[ranked[0].number], belief)


def _see(request: ChatRequest) -> Notes:
    """What the pictures show, as the planner would note it: the scene of the largest, the writing of all."""
    request.last_picture()
    pictures = list({p.sha256: p for p in request.pictures}.values())
    # Pictures of maps are square: what is written there is not in the scene.
    pictures = [p for p in pictures if p.width != p.height] or pictures[:1]
    pictures.sort(key=lambda p: -p.width * p.height)
    notes = Notes(description=describe(look_at_picture(pictures[0])))
    for picture in pictures[:MAX_LOOKS]:
        lines = look_at_picture(picture).readable
        notes.texts += [replace(line, zoomed=picture is not pictures[0]) for line in lines]
    return notes


def _score(candidate: Candidate, others: list[Candidate], notes: Notes, belief: Belief, odds: Odds) -> float:
    """Log-odds of an answer: the picture first, then quoted pages, honest quotes, and company."""
    place = candidate.place
    score = max([belief.evidence.score(place.country), *(s for near, (s, _) in odds.items() if place.is_at(near))])
    # The best passage that ties the picture's own writing to the place answered.
    told = [cities_in_passage(passage, 0, notes) for passage in candidate.passages]
    pages = [weight for weights in told for near, weight in weights.items() if place.is_at(near)]
    score += min(PAGES_MOST, PAGES * max(pages, default=0.0)) + _quotes(candidate, notes)
    company = sum(place.is_at(other.place) for other in others if other is not candidate)
    score += min(AGREES_MOST, AGREES * company)
    is_claimed = fold(candidate.country) in ("", fold(candidate.country_label), place.country.lower())
    return score if is_claimed else score - SELF_CONTRADICTION


def _quotes(candidate: Candidate, notes: Notes) -> float:
    """A trajectory that quotes writing the picture has is trusted more than one that quotes what is not there."""
    seen = fold(" / ".join(notes.words))
    quoted = {fold(text) for passage in candidate.passages for text in _QUOTED.findall(passage)}
    if not seen or not quoted:
        return 0.0
    there = sum(1 for text in quoted if text and text in seen)
    return min(CLAIMS_MOST, SEEN_TOO * there - (0.0 if there else NOT_SEEN))


def _chosen(ranked: list[Candidate], support: float, belief: Belief) -> Answer:
    """The first of the candidates, completed by those that agree, with the reason for it."""
    best, place = ranked[0], ranked[0].place
    mates = [c for c in ranked if c.place.is_at(place)]
    # Agents at the same place complete each other: one knows the region, another the town.
    city = next((c.place.name for c in mates if c.place.name), "")
    region = next((c.region for c in mates if c.region), "")
    named = ", ".join(str(c.number) for c in mates[1:])
    company = f"; candidate {named} agrees" if len(mates) == 2 else f"; candidates {named} agree" if named else ""
    where = f"{city}, {best.country_label}" if city else best.country_label
    why = f"Candidate {best.number} ({where}) is best supported{company}."
    other = next((c for c in ranked if c not in mates), None)
    score = belief.evidence.score
    if other is not None and score(other.place.country) < score(place.country):
        why += f" Candidate {other.number} would mean {other.place.country_name}, which the clues fit less."
    sure = max(0.05, min(0.95, logistic((support - 6.0) / 2)))
    return Answer(round(place.lat, 5), round(place.lon, 5), best.country_label, region, city, "", sure, why)
