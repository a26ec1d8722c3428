"""Thinking with Map's reward: steps by distance, eq. 5."""

from bisect import bisect_right

EDGES_KM = (0.5, 2.0, 10.0, 25.0, 200.0, 750.0)
STEPS = (1.0, 0.8, 0.6, 0.4, 0.2, 0.1, 0.0)


def reward_at(error_km: float) -> float:
    """r: the step whose half-open interval [from, to) holds the distance."""
    return STEPS[bisect_right(EDGES_KM, error_km)] if error_km >= 0 else 0.0
