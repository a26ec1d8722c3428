"""Review: checks, a snapshot with its report, and the reviewer's decision about it."""

from tasks.review.approval import ReviewRefused, approve, auto_approve, decisions, newest_snapshot, reject
from tasks.review.snapshot import STAGE

STAGES = [STAGE]

__all__ = ["STAGES", "ReviewRefused", "approve", "auto_approve", "decisions", "newest_snapshot", "reject"]
