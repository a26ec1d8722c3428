"""Train: samples from an approved snapshot, then SFT, agentic cold start and GRPO, each from the one before."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.train.steps import PHASES, STAGES, check

__all__ = ["PHASES", "STAGES", "check"]


def __getattr__(name: str) -> Any:
    """The steps import agents and services, so they are imported when requested: serving a model needs neither."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("tasks.train.steps"), name)
