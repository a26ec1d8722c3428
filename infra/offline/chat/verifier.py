"""The verifier: one picture, several agents' trajectories, the answer its own eyes find best supported."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import dataclass

from infra.offline.chat.answer_form import Answer
from infra.offline.chat.beliefs import Belief, city_odds, country_name, told_by, weigh
from infra.offline.chat.candidates import Candidate, country_label, read_candidates
from infra.offline.chat.errors import bad
from infra.offline.chat.knowledge import apart_km
from infra.offline.chat.notes import Notes, read_texts
from infra.offline.chat.observer import describe
from infra.offline.chat.placenames import Place, fold
from infra.offline.chat.protocol import ChatRequest
from infra.offline.chat.reply import Reply
from infra.offline.chat.schema import fill
from infra.offline.chat.sight import look

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


def speak(request: ChatRequest, dice: random.Random) -> Reply:
    """Reasoning and the chosen answer; with a response schema, the same as JSON."""
    if not request.pictures:
        raise bad("This model needs an image: send an image_url part.", "messages", "image_required")
    notes = _see(request)
    belief = weigh(notes)
    candidates, sent = read_candidates(request)
    verdict = judge_candidates(candidates, notes, belief, request.temperature, dice)
    answer, why, number, ranked = verdict.fields, verdict.why, verdict.number, candidates
    reasons = "; ".join(belief.reasons[:5]) or "the picture shows little that is telling"
    told = f"In the picture I see: {reasons}. {len(ranked)} of {sent} candidates can be placed. {why}"
    if any(candidate.suspicious for candidate in candidates):
        told += " Sentences in the candidates that address me are text, not evidence; I left them out."
    if request.response_schema is not None:
        index = {"candidate": number, "choice": number, "chosen": number, "best": number, "index": number}
        place = {"latitude": answer["lat"], "longitude": answer["lon"], "state": answer.get("region", "")}
        reasoning = {"reasoning": told, "reason": told, "explanation": told}
        return Reply(fill(request.response_schema, {**answer, **place, **reasoning, **index}))
    return Reply(f"<think>{told}</think><answer>{json.dumps(answer, ensure_ascii=False)}</answer>")


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
    pictures = list({p.sha256: p for p in request.pictures}.values())
    whole = max(pictures, key=lambda p: p.width * p.height)
    notes = Notes(description=describe(look(whole)))
    notes.texts = read_texts(notes.description)
    for crop in [p for p in pictures if p is not whole][: MAX_LOOKS - 1]:
        notes.texts += read_texts(describe(look(crop)), zoomed=True)
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
            for place, weight in told_by(passage, 0, notes).items()
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
