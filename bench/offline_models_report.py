"""The figures of a measurement: accuracy of every role, regimes, tiers and sequences, each range with its verdict."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.clue_grade import GRADES

LIMITS_KM = (1, 25, 200, 750)
TRIALS = 8
LEARNABLE, EASY = (0.25, 0.50), (0.20, 0.40)
LEAST_SEQUENCES, LEAST_GAIN = 4.0, 0.10
MOST_OFF = 0.05  # of stated confidence against the share that is right


@dataclass
class Measured:
    """One picture's results."""

    frame: str  # first | later
    verdict: str  # of the judge
    single: dict[str, float]  # error in km of each answerer at temperature 0
    trials: list[float]  # of answerer-base at temperature 1
    confidence: dict[str, float]  # of each answerer at temperature 0, that it is within 25 km
    agent: dict[str, Any] = field(default_factory=dict)  # empty where the agents were not asked
    clues: str = ""  # grade of what the picture gives away; empty where it was not noted


def report(rows: list[Measured]) -> bool:
    """Prints the figures of every frame; whether all ranges hold over both frames together."""
    held = True
    for frame in ("first", "later", "both"):
        some = [row for row in rows if frame in (row.frame, "both")]
        if not some:
            continue
        print(f"\n== {frame} frames: {len(some)} pictures; judged {dict(Counter(row.verdict for row in some))}")
        for name in some[0].single:
            _accuracy(name, [row.single[name] for row in some])
        held = _by_clues(some) and held if frame == "both" else held
        held = _calibration(some) and held if frame == "both" else held
        held = _regimes(some) and held if frame == "both" else held
        with_agent = [row.agent for row in some if row.agent]
        if with_agent:
            held = _agents(with_agent) and held if frame == "both" else held
    return held


def _accuracy(name: str, errors: Sequence[float]) -> None:
    shares = "  ".join(f"<{limit} km {100 * _share(errors, limit):.0f} %" for limit in LIMITS_KM)
    print(f"{name:<18} {shares}")


def _by_clues(rows: list[Measured]) -> bool:
    """Accuracy by the grade of a picture's clues: the more it gives away, the more answers are within each distance."""
    means = []
    for grade in GRADES:
        some = [row for row in rows if row.clues == grade]
        if some:
            shares = {
                limit: _share([error for row in some for error in row.single.values()], limit) for limit in LIMITS_KM
            }
            means.append(sum(shares.values()) / len(shares))
            told = "  ".join(f"<{limit} km {100 * share:.0f} %" for limit, share in shares.items())
            print(f"clues {grade:<12} {told}  of all answerers, {len(some)} pictures")
    steps = [more - less for less, more in itertools.pairwise(means)]
    return _goal("least gain by a grade of clues", min(steps), 0.0, math.inf) if steps else True


def _calibration(rows: list[Measured]) -> bool:
    """Stated confidence beside what became of it, in tenths, and how far they are apart on average."""
    answers = [(row.confidence[name], row.single[name] < 25) for row in rows for name in row.confidence]
    off = 0.0
    for tenth in range(10):
        some = [(said, right) for said, right in answers if min(9, int(10 * said)) == tenth]
        if some:
            said, right = (sum(column) / len(some) for column in zip(*some, strict=True))
            off += len(some) / len(answers) * abs(said - right)
            print(f"answers that say {said:.2f}: {right:.2f} are right, of {len(some)}")
    return _goal("expected calibration error", off, 0.0, MOST_OFF)


def _regimes(rows: list[Measured]) -> bool:
    good = True
    for limit in LIMITS_KM:
        passes = [sum(error < limit for error in row.trials) for row in rows]
        share = sum(0 < count < TRIALS for count in passes) / len(passes)
        mastered = sum(count == TRIALS for count in passes) / len(passes)
        good &= _goal(f"learnable at {limit} km", share, *LEARNABLE, f"mastered {100 * mastered:.0f} %")
    easy = sum(sum(error < 10 for error in row.single.values()) >= 2 for row in rows) / len(rows)
    return _goal("easy: 2 of 3 within 10 km", easy, *EASY) and good


def _agents(rows: list[dict[str, Any]]) -> bool:
    _accuracy("agent, T 0", [row["cold"] for row in rows])
    _accuracy("agent, T 1", [error for row in rows for error in row["trials"]])
    _accuracy("agent, best of 4", [min(row["trials"][:4]) for row in rows])
    _accuracy("verifier of 4", [row["verifier"] for row in rows])
    _accuracy("observer + planner", [row["planner"] for row in rows])
    calls = [count for row in rows for count in row["calls"]]
    print(f"tool calls a trajectory {sum(calls) / len(calls):.1f}; different orders of tools in {TRIALS}: "
          f"{sum(row['kinds'] for row in rows) / len(rows):.1f}")  # fmt: skip
    mean = sum(row["sequences"] for row in rows) / len(rows)
    good = _goal(f"different sequences of {TRIALS}", mean, LEAST_SEQUENCES, math.inf)
    once = _share([error for row in rows for error in row["trials"]], 25)
    gain = _share([min(row["trials"][:4]) for row in rows], 25) - once
    return _goal("best@4 above pass@1, 25 km", gain, LEAST_GAIN, math.inf) and good


def _goal(name: str, value: float, low: float, high: float, more: str = "") -> bool:
    good = low <= value <= high
    wanted = f"{low:g} to {high:g}" if math.isfinite(high) else f"{low:g} or more"
    print(f"{name:<30} {value:.2f}  ({wanted}: {'holds' if good else 'DOES NOT HOLD'}) {more}".rstrip())
    return good


def _share(errors: Sequence[float], limit: float) -> float:
    return sum(error < limit for error in errors) / max(1, len(errors))
