"""What a benchmark must show, and whether it did."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """One figure with its bounds."""

    what: str
    found: float
    at_least: float = float("-inf")
    at_most: float = float("inf")

    @property
    def held(self) -> bool:
        """A figure that is no number holds nothing."""
        return self.at_least <= self.found <= self.at_most

    def __str__(self) -> str:
        bounds = [("at least", self.at_least), ("at most", self.at_most)]
        wanted = " and ".join(f"{word} {bound:g}" for word, bound in bounds if abs(bound) != float("inf"))
        return f"{self.what}: {self.found:.4g}, wanted {wanted}"


def judge(goals: Iterable[Goal]) -> int:
    """Say which goals are missed; the exit code."""
    missed = [goal for goal in goals if not goal.held]
    for goal in missed:
        print(f"   MISSED {goal}", flush=True)
    return int(bool(missed))
