"""Right for the right reason: whether what a conversation states is there, and whether its tools support the answer.

The same text rules that reject trajectories in synthesis (`tasks.agent.claims`), on answers of any policy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tasks.agent.claims import contradictions, plain, point_of, quoted_signs, turns_of, unseen_signs
from tasks.agent.environment import Trajectory
from tasks.geo.distance import distance_km
from tasks.reward.answer import ParsedAnswer, parse_answer
from tasks.reward.outcome import Truth

SUPPORT_KM = 25.0  # a point that a tool gave supports an answer this near: a city's reach


@dataclass(frozen=True)
class Grounding:
    """What speaks for and against an answer's reasons."""

    quoted: int  # signs that it says it read
    unseen: tuple[str, ...] | None  # those that are nowhere to be read; None: no one read the pictures
    contradicted: tuple[str, ...]  # sentences that results, answer or country show to be false
    supported: bool | None  # by a place that a tool gave; None: no tool gave any

    @property
    def is_grounded(self) -> bool:
        """Nothing that can be checked speaks against it."""
        return not self.unseen and not self.contradicted and self.supported is not False

    @property
    def process_reward(self) -> float:
        """1: a tool supports the answer and nothing is false; -1: something is, or no tool's place is near; else 0.

        An answer without reasons can only have 0, so that silence is not what is learned.
        """
        if not self.is_grounded:
            return -1.0
        return 1.0 if self.supported else 0.0


def ground(trajectory: Trajectory, truth: Truth, readings: Sequence[str] | None = None) -> Grounding:
    """The grounding of an answered conversation; `readings` is what another model read in each picture."""
    quoted = sum(1 for turn in turns_of(trajectory) for _ in quoted_signs(turn.statements))
    was_read = readings is not None or bool(trajectory.observations)
    return Grounding(
        quoted,
        tuple(unseen_signs(trajectory, readings)) if was_read else None,
        tuple(contradictions(trajectory, truth)),
        tool_support(trajectory),
    )


def tool_support(trajectory: Trajectory) -> bool | None:
    """Whether a place that a tool gave is near the answer's point or has the name of its town.

    None where no tool gave a place, such as with zooms alone, or the answer names none.
    """
    answer = parse_answer(trajectory.final_text)
    if not isinstance(answer, ParsedAnswer):
        return None
    rows = [row for result in _results(trajectory) for row in result]
    if not rows:
        return None
    points = [point for row in rows if (point := point_of(row)) is not None]
    if answer.lat is not None and answer.lon is not None:
        lat, lon = answer.lat, answer.lon
        if any(distance_km(lat, lon, *point) <= SUPPORT_KM for point in points):
            return True
    town = plain(answer.address.city or "")
    texts = (plain(" ".join(str(value) for value in row.values() if isinstance(value, str))) for row in rows)
    return bool(town) and any(f" {town} " in f" {' '.join(text.split())} " for text in texts)


def _results(trajectory: Trajectory) -> Iterator[tuple[dict[str, object], ...]]:
    """The rows that each call gave. What came after the last reply supports none."""
    return (result.rows for turn in turns_of(trajectory) for result in turn.results if result.rows)
