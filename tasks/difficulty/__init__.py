"""Difficulty: Pass@K of the policy being trained, and the pictures it can learn from."""

from tasks.difficulty.attempts import STAGE as ATTEMPTS
from tasks.difficulty.regime import STAGE as REGIMES
from tasks.difficulty.regime import table8
from tasks.difficulty.report import report

STAGES = [ATTEMPTS, REGIMES]

__all__ = ["ATTEMPTS", "REGIMES", "STAGES", "report", "table8"]
