"""Review: checks, a snapshot with its report, and the reviewer's word on it."""

from tasks.review.approval import ReviewRefused, approve, reject
from tasks.review.snapshot import STAGE

STAGES = [STAGE]

__all__ = ["STAGES", "ReviewRefused", "approve", "reject"]
