"""Rejection sampling (SpotAgent 3.2.1): which trajectories are worth learning from, and why the others are not."""

from dataclasses import dataclass

from schemas.settings.synthesize import SynthesizeSettings
from tasks.agent.react import Trajectory
from tasks.geo.distance import distance_km
from tasks.reward.answer import ParsedAnswer, parse_answer

# Said by the parser where there is no answer at all, rather than one it cannot use.
_NOTHING_SAID = ("empty", "no_answer")


@dataclass(frozen=True)
class Point:
    """Where a picture was really taken."""

    lat: float
    lon: float


@dataclass(frozen=True)
class Verdict:
    """Whether a trajectory is kept; if not, every reason that applies, in a fixed order."""

    reasons: tuple[str, ...]
    answer: str | None = None
    lat: float | None = None
    lon: float | None = None
    error_km: float | None = None

    @property
    def kept(self) -> bool:
        return not self.reasons


def verdict(trajectory: Trajectory, truth: Point, settings: SynthesizeSettings) -> Verdict:
    """Kept iff every tool call was well-formed and answered, and the answer is whole and under `max_error_km` away."""
    reasons = []
    if any(not call.well_formed for call in trajectory.calls):
        reasons.append("malformed_call")
    if any(call.well_formed and not call.succeeded for call in trajectory.calls):
        reasons.append("tool_failed")
    if trajectory.over_budget or len(trajectory.calls) > settings.max_tool_calls:
        reasons.append("too_many_calls")
    answer = parse_answer(trajectory.final_text)
    if not isinstance(answer, ParsedAnswer):
        reasons.append("no_answer" if answer.reason in _NOTHING_SAID else "unparsable_answer")
        return Verdict(tuple(reasons), answer.text.strip() or None)
    if answer.lat is None or answer.lon is None:
        return Verdict((*reasons, "missing_field"), answer.text.strip())
    if not answer.address.country or not answer.address.city:
        reasons.append("missing_field")
    error_km = distance_km(answer.lat, answer.lon, truth.lat, truth.lon)
    # Strictly nearer, eq. 7; written so that an error that is not a number is not kept.
    if not error_km < settings.max_error_km:
        reasons.append("too_far")
    return Verdict(tuple(reasons), answer.text.strip(), answer.lat, answer.lon, error_km)
