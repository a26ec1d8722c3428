"""One stage on the head of a Ray cluster: `python -m tasks.runtime.ray_job MODULE STAGE`, as a job runs it.

The whole configuration is in an environment variable. Progress and the result are lines of the output.
"""

import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import polars as pl

from schemas.config import Config
from schemas.errors import GeofixError
from schemas.messages import Usage
from tasks.lake import Lake
from tasks.runtime.outcome import StageResult, Tick
from tasks.runtime.stage import Context, Stage
from tasks.services import ServiceError, connect

CONFIG, FLOW_RUN = "GEOFIX_JOB_CONFIG", "GEOFIX_JOB_FLOW_RUN"  # environment variables
TICK, RESULT = "geofix-tick", "geofix-result"


def stage_home(stage: Stage) -> str:
    """The module from which a process elsewhere gets the stage by its name."""
    for name in (stage.open.__module__, f"tasks.{stage.name.partition('.')[0]}"):
        module = sys.modules.get(name)
        if module is not None and any(one.name == stage.name for one in _stages(module)):
            return name
    raise GeofixError(f"{stage.name} cannot run as a job: give spread.address as host:port of the cluster's head")


def _stages(module: ModuleType) -> Iterator[Stage]:
    for value in list(vars(module).values()):
        yield from (one for one in (value if isinstance(value, tuple | list) else (value,)) if isinstance(one, Stage))


def settings_of(stage: Stage, config: Config) -> Any:
    """The section of the configuration that is the stage's."""
    found: Any = config
    for name in (stage.section or stage.name.partition(".")[0]).split("."):
        found = getattr(found, name)
    return found


def read_result(lake: Lake, result: dict[str, Any]) -> StageResult:
    """What a job printed of its result, if the lake's table of runs has it as well."""
    runs = lake.read("runs").filter(pl.col("run_id") == result["run_id"])
    if runs.is_empty() or runs["kept"][0] != result["kept"]:
        raise GeofixError(f"run {result['run_id']} of the job is not in '{lake.uri}': the cluster needs the same lake")
    return StageResult(**{**result, "usage": Usage(**result["usage"])})


def main(argv: list[str]) -> int:
    """Run the stage; returns the exit code."""
    from tasks.runtime.runner import run

    module, name = argv
    stage = next(one for one in _stages(importlib.import_module(module)) if one.name == name)
    config = Config.model_validate_json(os.environ[CONFIG])
    spread = config.spread.model_copy(update={"address": os.environ["RAY_ADDRESS"]})  # of this cluster, set by Ray

    def progress(tick: Tick) -> None:
        print(TICK, json.dumps(dataclasses.asdict(tick)), flush=True)

    try:
        settings = settings_of(stage, config)
        roles = stage.roles(settings) if stage.roles else ()
        connections = connect(config.services, os.environ, stage.services, config.models, roles)
        context = Context(
            lake=Lake(config.lake),
            connections=connections,
            spread=spread,
            run=config.run,
            progress=progress,
            flow_run_id=os.environ.get(FLOW_RUN, ""),
            config_json=os.environ[CONFIG],
        )
        result = run(stage, settings, context)
    except (GeofixError, ServiceError) as error:
        print(f"geofix: {error}", flush=True)
        return 1
    print(RESULT, json.dumps(dataclasses.asdict(result)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
