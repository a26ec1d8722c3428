"""The parts of the pipeline, in order."""

import difflib
import importlib
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from schemas.load import ConfigError

if TYPE_CHECKING:
    from tasks.lake import Lake
    from tasks.runtime.report import Report
    from tasks.runtime.runner import ColumnStage, Stage

# To add a part: its package under tasks/ with STAGES, its settings under the same name in schemas/config.py, and its
# name here. The package may also have `check(settings)`, which raises what is wrong with files the settings name
# before anything is written, and `report(lake, settings)`, which shows what the part made.
PARTS = ("plan", "collect", "curate", "review", "synthesize", "difficulty", "train", "evaluate")


def stages_of(part: str) -> Sequence["Stage | ColumnStage"]:
    """The stages of a part, in order."""
    found: Sequence[Stage | ColumnStage] = importlib.import_module(f"tasks.{part}").STAGES
    return found


def check_stage_names(names: Collection[str]) -> None:
    """ConfigError if `spread.stages` names what is no stage, or one that has no workers."""
    from tasks.runtime.stage import ColumnStage

    if not names:
        return
    stages = [stage for part in PARTS for stage in stages_of(part)]
    known = [*(stage.name for stage in stages if not isinstance(stage, ColumnStage)), "ingest"]
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean '{close[0]}'? " if close else ""
            raise ConfigError(
                f"spread.stages: no stage '{name}' has workers; {hint}those that have: {', '.join(known)}"
            )


def check_of(part: str) -> "Callable[[Any], None] | None":
    """What looks at a part's input before anything starts, if the part has it."""
    return _offered(part, "check")


def report_of(part: str) -> "Callable[[Lake, Any], Report] | None":
    """What shows the outcome of a part, if the part has it."""
    return _offered(part, "report")


def _offered(part: str, name: str) -> Any:
    """What the part's package offers under this name; a module of the same name inside it is no offer."""
    package = importlib.import_module(f"tasks.{part}")
    return getattr(package, name) if name in getattr(package, "__all__", ()) else None


def services_of(parts: Sequence[str]) -> set[str]:
    """The services whose keys these parts need."""
    return {service for part in parts for stage in stages_of(part) for service in stage.services}


def parts_between(first: str, last: str) -> list[str]:
    """The parts from one to another, both included."""
    return list(PARTS[PARTS.index(first) : PARTS.index(last) + 1])
