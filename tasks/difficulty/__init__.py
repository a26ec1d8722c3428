"""Difficulty: Pass@K of the current policy, and the pictures it can learn from."""

from tasks.difficulty.passes import STAGE
from tasks.difficulty.regime import table8

STAGES = [STAGE]

__all__ = ["STAGE", "STAGES", "table8"]
