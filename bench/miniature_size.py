"""How much of the miniature experiment is done, in two sizes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """How much of what is done."""

    name: str
    train: int  # places asked for trajectories; a third of them gives one
    views: int  # pictures answered at once, places of their own
    practice: int  # places asked for pictures to practise on; two fifths are painted
    held_out: int  # of a world, at most: there are 1,461, 1,488 and 1,445
    further: tuple[int, ...]  # seeds of worlds in which the last stages are measured too
    controls: int  # of the held-out places
    few: int  # trajectories of the cold start that GRPO goes on from
    base_s: float
    sft_s: float
    few_s: float
    cold_s: float  # on all trajectories
    batch: int
    boards: int  # read again among new lessons
    k: int
    parts: int  # processes that measure Pass@K
    grpo_steps: int
    grpo_prompts: int
    group: int
    grpo_rate: float
    tokens: int  # of one attempt, tool results among them


SIZES = {
    "tiny": Size("tiny", 8, 2, 8, 2, (8,), 2, 2, 0, 2, 2, 2, 2, 4, 2, 1, 1, 1, 2, 1e-4, 40),
    "gpu": Size("gpu", 3000, 4000, 6000, 1500, (8, 9), 500, 250, 480, 60, 15, 25, 32, 600, 8, 5, 700, 16, 8, 1e-4, 640),
}
