"""What a picture's discussions say about agents: eq. 2 and 3, updated round by round.

P of eq. 2 is the chance with which an agent is drawn in the next round: 1 after a right answer, 0 after a wrong one,
1/2 when it did not take part, so that every agent gets another chance. The target Lst is that of Algorithm 1: an agent
keeps the verdict on its last answer, and has 1/2 if it never answered.

As printed, eq. 3 multiplies a link by (tt + 1) / (2 tt) after a right answer and by (2 tt - 1) / (2 tt) after a wrong
one. From tt = 2 on the first factor is below 1, so a right answer would weaken the link, and from tt = 3 on more than a
wrong one: against the text, which says that links of right answers are strengthened. `link_factor` does what the text
says; `printed=True` gives the printed form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tasks.recipes.smilegeo.swarm import Matrix, equal_links


def link_factor(right: bool, streak: int, printed: bool = False) -> float:
    """What a link is multiplied by; `streak` is tt, the number of right answers in a row, 1 at least."""
    tt = max(1, streak)
    if printed:
        return (tt + 1) / (2 * tt) if right else (2 * tt - 1) / (2 * tt)
    # Right answers strengthen by as much as printed wrong ones weaken, less so the longer the streak.
    return (2 * tt + 1) / (2 * tt) if right else (2 * tt - 1) / (2 * tt)


@dataclass
class Estimate:
    """Chances, election target and links of one picture."""

    agents: int
    printed: bool = False
    chances: list[float] = field(init=False)  # P, eq. 2
    election: list[float] = field(init=False)  # Lst
    links: Matrix = field(init=False)  # A
    streaks: list[int] = field(init=False)  # tt

    def __post_init__(self) -> None:
        self.chances = [0.5] * self.agents
        self.election = [0.5] * self.agents
        self.links = equal_links(self.agents)
        self.streaks = [0] * self.agents

    def observe(self, right: Mapping[int, bool], reviews: Mapping[int, Sequence[int]]) -> None:
        """Take a round's outcome: which answerers were right, eq. 2, and who had reviewed them, eq. 3."""
        self.chances = [0.5 if agent not in right else float(right[agent]) for agent in range(self.agents)]
        for agent, was_right in right.items():
            self.election[agent] = float(was_right)
            # A wrong answer weakens less after a long streak, which it ends.
            streak = self.streaks[agent] + was_right
            for reviewer in reviews.get(agent, ()):
                self.links[agent, reviewer] *= link_factor(was_right, streak, self.printed)
            self.streaks[agent] = streak if was_right else 0
