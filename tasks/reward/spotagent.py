"""SpotAgent's reward: piecewise linear in distance, eq. 8. No format reward; what cannot be read earns nothing."""

from tasks.geo.distance import distance_km
from tasks.reward.answer import ParseFailure, parse_point
from tasks.reward.outcome import Scored, Truth


def reward_at(error_km: float) -> float:
    """R(d): 1 below 1 km, linear to 0.75 at 25 km, linear towards 0.2 at 200 km, nothing from there on."""
    if error_km < 1:
        return 1.0
    if error_km < 25:
        return 1.0 - 0.25 / 24 * (error_km - 1)
    if error_km < 200:
        return 0.75 - 0.55 / 175 * (error_km - 25)
    return 0.0  # NaN too: it fails every comparison


def score(answer_text: str | None, truth: Truth) -> Scored:
    """The reward of one answer."""
    answer = parse_point(answer_text)
    if isinstance(answer, ParseFailure):
        return Scored(0.0, reason=answer.reason)
    assert answer.lat is not None and answer.lon is not None
    error_km = distance_km(answer.lat, answer.lon, truth.lat, truth.lon)
    return Scored(reward_at(error_km), error_km=error_km)
