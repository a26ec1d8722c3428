"""Evaluate: what policies answer on the benchmark, and what the answers are worth."""

from tasks.evaluate.answers import STAGE as ANSWERS
from tasks.evaluate.scores import STAGE as SCORES

STAGES = [ANSWERS, SCORES]

__all__ = ["STAGES"]
