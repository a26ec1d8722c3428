"""Train: samples from an approved snapshot, then SFT, agentic cold start and GRPO, each from the one before."""

from tasks.train import samples
from tasks.train.opening import check_base as check
from tasks.train.stage import COLD_START, GRPO, SFT

STAGES = [samples.STAGE, SFT, COLD_START, GRPO]

__all__ = ["STAGES", "check"]
