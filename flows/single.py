"""A flow of one part: what `geofix PART` runs and what a deployment schedules.

The entrypoint of a part without a file of its own is `flows/single.py:PART`.
"""

import importlib
import inspect
from typing import Any

from prefect import Flow, State, flow

from flows.options import RunOptions
from flows.order import PARTS
from flows.parts import run_parts
from flows.session import open_session
from flows.states import final_state
from tasks.runtime.outcome import StageResult


def single(part: str) -> Flow[..., Any]:
    """The flow that runs this part on what the lake holds."""

    @flow(name=part, description=inspect.getdoc(importlib.import_module(f"tasks.{part}")))
    def run_single(options: RunOptions = RunOptions()) -> State[list[StageResult]]:
        """Run one part.

        Args:
            options: Which configuration to use: recipe, profile, file, lake and single settings.
        """
        with open_session(options, [part]) as session:
            return final_state(run_parts(session, [part]))

    return run_single


def __getattr__(name: str) -> Flow[..., Any]:
    """`flows.single.<part>`: Prefect loads an entrypoint as an attribute of its module."""
    if name not in PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; the parts are {', '.join(PARTS)}")
    return single(name)
