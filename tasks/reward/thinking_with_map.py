"""Thinking with Map's reward: steps by distance, eq. 5."""

from bisect import bisect_right

from tasks.geo.distance import distance_km
from tasks.reward.answer import ParseFailure, parse_point
from tasks.reward.outcome import Scored, Truth

EDGES_KM = (0.5, 2.0, 10.0, 25.0, 200.0, 750.0)
STEPS = (1.0, 0.8, 0.6, 0.4, 0.2, 0.1, 0.0)


def reward_at(error_km: float) -> float:
    """r: the step whose half-open interval [from, to) holds the distance."""
    return STEPS[bisect_right(EDGES_KM, error_km)] if error_km >= 0 else 0.0


def score(answer_text: str | None, truth: Truth) -> Scored:
    """The reward of one answer."""
    answer = parse_point(answer_text)
    if isinstance(answer, ParseFailure):
        return Scored(0.0, reason=answer.reason)
    assert answer.lat is not None and answer.lon is not None
    error_km = distance_km(answer.lat, answer.lon, truth.lat, truth.lon)
    return Scored(reward_at(error_km), error_km=error_km)
