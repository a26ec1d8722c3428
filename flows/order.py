"""The parts of the pipeline, in order: commands, flows and what a run does all follow from this list."""

import difflib
import importlib
import importlib.util
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefect import Flow

    from schemas.config import Config
    from tasks.lake import Lake
    from tasks.runtime.report import Report
    from tasks.runtime.runner import ColumnStage, Stage

# To add a part: its package under tasks/ with STAGES; its contracts (TABLES) and its settings (SECTION) as modules of
# the same name in schemas/tables/ and schemas/settings/; and its name here. The package's docstring is the help of
# `geofix <part>` and the description of its flow. The package may also have `check(settings)`, which raises what is
# wrong with files the settings name before anything is written, and `report(lake, settings)`, which shows what the
# part made.
PARTS = ("plan", "collect", "curate", "review", "synthesize", "difficulty", "train", "evaluate")
REVIEW = "review"  # what follows it needs an approved snapshot


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
            from schemas.load import ConfigError  # pydantic: `geofix --help` does without

            raise ConfigError(
                f"spread.stages: no stage '{name}' has workers; {hint}those that have: {', '.join(known)}"
            )


def check_of(part: str) -> "Callable[[Any], None] | None":
    """The function that checks a part's input before anything starts, if the part has one."""
    found: Callable[[Any], None] | None = _offered(part, "check")
    return found


def report_of(part: str) -> "Callable[[Lake, Any], Report] | None":
    """The function that reports what a part made, if the part has one."""
    found: Callable[[Lake, Any], Report] | None = _offered(part, "report")
    return found


def _offered(part: str, name: str) -> Any:
    """What the part's package exports under this name; a module of the same name inside it does not count."""
    package = importlib.import_module(f"tasks.{part}")
    return getattr(package, name) if name in getattr(package, "__all__", ()) else None


def services_of(parts: Sequence[str]) -> set[str]:
    """The services whose keys these parts need."""
    return {service for part in parts for stage in stages_of(part) for service in stage.services}


def roles_of(config: "Config", parts: Sequence[str]) -> list[tuple[str, str]]:
    """(section, role) of the models that these parts ask."""
    from schemas.config import section_of

    found = []
    for part in parts:
        for stage in stages_of(part):
            roles = getattr(stage, "roles", None)
            section = stage.section or part
            found += [(section, role) for role in (roles(section_of(config, section)) if roles else ())]
    return found


def parts_between(first: str, last: str) -> list[str]:
    """The parts from one to another, both included."""
    return list(PARTS[PARTS.index(first) : PARTS.index(last) + 1])


def parts_of_flow(name: str, first: str = PARTS[0], last: str = PARTS[-1]) -> list[str]:
    """The parts that the flow of this name runs."""
    if name == "pipeline":
        return parts_between(first, last)
    return parts_between(PARTS[0], REVIEW) if name == "refresh" else [name]


def flow_of(name: str) -> "Flow[..., Any]":
    """The flow of this name: that of flows/<name>.py, or a flow of the single part."""
    module = f"flows.{name}" if importlib.util.find_spec(f"flows.{name}") else "flows.single"
    found: Flow[..., Any] = getattr(importlib.import_module(module), name)
    return found
