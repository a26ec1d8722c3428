"""Evaluate: what policies answer on the benchmark, and what the answers are worth."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.evaluate.steps import STAGES, check, report

__all__ = ["STAGES", "check", "report"]


def __getattr__(name: str) -> Any:
    """The steps import most of the package, so they are imported when requested: `geofix score` needs one module."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("tasks.evaluate.steps"), name)
