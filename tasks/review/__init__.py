"""Review: checks, a snapshot with its site, and the reviewer's decision about it."""

from tasks.review.approval import ReviewRefused, approve, auto_approve, decisions, newest_snapshot, reject
from tasks.review.site import renew_site
from tasks.review.snapshot import STAGE

STAGES = [STAGE]

__all__ = ["STAGES", "ReviewRefused", "approve", "auto_approve", "decisions", "newest_snapshot", "reject", "renew_site"]
