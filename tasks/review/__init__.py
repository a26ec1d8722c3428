"""Review: checks, a snapshot with its site, and the reviewer's decision about it."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.review.approval import ReviewRefused, approve, auto_approve, decisions, newest_snapshot, reject
    from tasks.review.site import renew_site
    from tasks.review.snapshot import STAGES

__all__ = ["STAGES", "ReviewRefused", "approve", "auto_approve", "decisions", "newest_snapshot", "reject", "renew_site"]
_MODULES = {"STAGES": "snapshot", "renew_site": "site"}


def __getattr__(name: str) -> Any:
    """Imported when requested: the site draws with libraries that a command's closing words do without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"tasks.review.{_MODULES.get(name, 'approval')}"), name)
