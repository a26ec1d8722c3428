"""The stages of the pipeline, in order: commands, flows and what a run does all follow from this list.

Where Pass@K is of a model that training makes, a run measures it between two phases of training: `segments`.
"""

import difflib
import importlib
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefect import Flow

    from schemas.config import Config
    from tasks.lake import Lake
    from tasks.runtime.report import Report
    from tasks.runtime.runner import ColumnStage, Stage

# To add a stage: its package under tasks/ with STAGES; its contracts (TABLES) and its settings (SECTION) as modules of
# the same name in schemas/tables/ and schemas/settings/; and its name here. The package's docstring is the help of
# `geofix <stage>` and the description of its flow. The package may also have `check(settings)`, which raises what is
# wrong with files the settings name before anything is written, and `report(lake, settings)`, which shows what the
# stage made.
STAGES = ("plan", "collect", "curate", "review", "synthesize", "difficulty", "train", "evaluate")
REVIEW = "review"  # what follows it needs an approved snapshot


def steps_of(stage: str) -> Sequence["Stage | ColumnStage"]:
    """The steps of a stage, in order."""
    steps: Sequence[Stage | ColumnStage] = importlib.import_module(f"tasks.{stage}").STAGES
    return steps


def check_step_names(names: Collection[str]) -> None:
    """ConfigError if `spread.stages` names something else than a step that has workers."""
    from tasks.runtime.stage import ColumnStage

    if not names:
        return
    steps = [step for stage in STAGES for step in steps_of(stage)]
    known = [*(step.name for step in steps if not isinstance(step, ColumnStage)), "ingest"]
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean '{close[0]}'? " if close else ""
            from schemas.load import ConfigError  # pydantic: `geofix --help` does without

            raise ConfigError(f"spread.stages: no step '{name}' has workers; {hint}those that have: {', '.join(known)}")


def check_of(stage: str) -> "Callable[[Any], None] | None":
    """The function that checks a stage's input before anything starts, if the stage has one."""
    check: Callable[[Any], None] | None = _offered(stage, "check")
    return check


def report_of(stage: str) -> "Callable[[Lake, Any], Report] | None":
    """The function that reports what a stage made, if the stage has one."""
    report: Callable[[Lake, Any], Report] | None = _offered(stage, "report")
    return report


def _offered(stage: str, name: str) -> Any:
    """What the stage's package exports under this name; a module of the same name inside it does not count."""
    package = importlib.import_module(f"tasks.{stage}")
    return getattr(package, name) if name in getattr(package, "__all__", ()) else None


def segments(config: "Config", stages: Sequence[str]) -> "list[tuple[str, list[Stage | ColumnStage]]]":
    """(stage, its steps) in the order in which the recipe runs these stages.

    A recipe without a cold start writes no trajectories, and one that trains on all pictures measures no Pass@K. One
    without phases of training has no samples either; what else it learns is a step of `train`. Where Pass@K is of the
    model of a phase, training is in two parts: the phases up to that one, and after the measurement the samples again
    and the phases that follow.
    """
    train, pending = config.train, steps_run(config, stages)
    if "train" in stages and "cold_start" not in train.phases:
        pending = [(stage, steps) for stage, steps in pending if stage != "synthesize"]
    if not {"difficulty", "train"} <= {stage for stage, _ in pending}:
        return pending
    policy, phases = config.difficulty.policy, train.phases
    if "grpo" not in phases or not train.grpo.by_pass_at_k:
        return [(stage, steps) for stage, steps in pending if stage != "difficulty"]
    if policy not in phases or config.difficulty.endpoint == "trained":
        return pending
    from tasks.runtime.stage import ColumnStage  # polars: `geofix --help` does without

    at = [stage for stage, _ in pending].index("difficulty")  # training is the stage after it
    measured, (_, steps) = pending[at], pending[at + 1]
    last = next(number for number, step in enumerate(steps, 1) if step.name == f"train.{policy}")
    samples = [step for step in steps if isinstance(step, ColumnStage)]  # Pass@K finds more of them
    parts = [("train", steps[:last]), measured, ("train", [*samples, *steps[last:]])]
    return [*pending[:at], *parts, *pending[at + 2 :]]


def steps_run(config: "Config", stages: Sequence[str]) -> "list[tuple[str, list[Stage | ColumnStage]]]":
    """(stage, its steps) as far as a run of these stages has them under the recipe, in the order of the stages."""
    steps_by_stage = [(stage, list(steps_of(stage))) for stage in stages]
    if "train" not in stages:
        return steps_by_stage
    from tasks.recipes.evaluation import training_steps  # polars: `geofix --help` does without
    from tasks.train import PHASES

    wanted = [*(PHASES if config.train.phases else []), *training_steps(config.evaluate)]
    left_out = () if config.train.phases else ("synthesize", "difficulty")
    return [
        (stage, [step for step in steps if stage != "train" or step in wanted])
        for stage, steps in steps_by_stage
        if stage not in left_out
    ]


def services_of(config: "Config", stages: Sequence[str]) -> set[str]:
    """The services whose keys these stages need."""
    from schemas.config import section_of
    from tasks.agent.service_tools import ToolService
    from tasks.runtime.stage import services_asked

    is_frozen = config.services.tools.recording is not None
    return {
        str(service)
        for stage, steps in steps_run(config, stages)
        for step in steps
        for service in services_asked(step, section_of(config, step.section or stage))
        if not (is_frozen and isinstance(service, ToolService))
    }


def roles_of(config: "Config", stages: Sequence[str]) -> list[tuple[str, str]]:
    """(section, role) of the models that these stages ask."""
    from schemas.config import section_of

    role_names = []
    for stage, steps in steps_run(config, stages):
        for step in steps:
            roles = getattr(step, "roles", None)
            section = step.section or stage
            role_names += [(section, role) for role in (roles(section_of(config, section)) if roles else ())]
    return role_names


def stages_between(first: str, last: str) -> list[str]:
    """The stages from one to another, both included."""
    return list(STAGES[STAGES.index(first) : STAGES.index(last) + 1])


def stages_of_flow(name: str, first: str = STAGES[0], last: str = STAGES[-1]) -> list[str]:
    """The stages that the flow of this name runs."""
    if name == "pipeline":
        return stages_between(first, last)
    return stages_between(STAGES[0], REVIEW) if name == "refresh" else [name]


def flow_of(name: str) -> "Flow[..., Any]":
    """The flow of this name: `pipeline` or `refresh`, or a flow of the single stage."""
    module = "flows.single" if name in STAGES else f"flows.{name}"
    flow: Flow[..., Any] = getattr(importlib.import_module(module), name)
    return flow
