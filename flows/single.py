"""The flow of one stage, as `geofix STAGE` runs it; the entrypoint of a deployment is `flows.single.STAGE`."""

import importlib
import inspect
from typing import Any

from prefect import Flow, State, flow

from flows.options import RunOptions
from flows.order import STAGES
from flows.session import open_session
from flows.stages import run_stages
from flows.states import final_state
from tasks.runtime.items.outcome import StageResult


def single(stage: str) -> Flow[..., Any]:
    """The flow that runs this stage on what the lake holds."""

    @flow(name=stage, description=inspect.getdoc(importlib.import_module(f"tasks.{stage}")))
    def run_single(options: RunOptions = RunOptions()) -> State[list[StageResult]]:
        """Run one stage.

        Args:
            options: Which configuration to use: recipe, profile, file, lake and single settings.
        """
        with open_session(options, [stage]) as session:
            return final_state(run_stages(session, [stage]))

    return run_single


def __getattr__(name: str) -> Flow[..., Any]:
    """`flows.single.<stage>`: Prefect loads an entrypoint as an attribute of its module."""
    if name not in STAGES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; the stages are {', '.join(STAGES)}")
    return single(name)
