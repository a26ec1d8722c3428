"""The parts of the pipeline, in order."""

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.frame import ColumnStage, Stage

# To add a part: its package under tasks/ with STAGES, its settings under the same name in schemas/config.py, and its
# name here.
PARTS = ("plan", "collect", "curate", "review", "synthesize", "difficulty", "train", "evaluate")


def stages_of(part: str) -> Sequence["Stage | ColumnStage"]:
    """The stages of a part, in order."""
    found: Sequence[Stage | ColumnStage] = importlib.import_module(f"tasks.{part}").STAGES
    return found


def services_of(parts: Sequence[str]) -> set[str]:
    """The services whose keys these parts need."""
    return {service for part in parts for stage in stages_of(part) for service in stage.services}


def parts_between(first: str, last: str) -> list[str]:
    """The parts from one to another, both included."""
    return list(PARTS[PARTS.index(first) : PARTS.index(last) + 1])
