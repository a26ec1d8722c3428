"""The steps of training, in order."""

from tasks.recipes.evaluation import training_steps
from tasks.train import samples
from tasks.train.opening import check_base as check
from tasks.train.stage import COLD_START, GRPO, SFT

PHASES = [samples.STAGE, SFT, COLD_START, GRPO]
STAGES = [*PHASES, *training_steps()]

__all__ = ["PHASES", "STAGES", "check"]
