"""A flow of one part: what `geofix PART` runs and what a deployment schedules."""

from typing import Any

from prefect import Flow, flow

from flows.options import RunOptions
from flows.parts import run_parts
from flows.session import open_session
from tasks.runtime.outcome import StageResult


def single(part: str) -> Flow[Any, list[StageResult]]:
    """The flow that runs this part on what the lake holds."""

    @flow(name=part)
    def run_single(options: RunOptions | None = None) -> list[StageResult]:
        with open_session(options or RunOptions(), [part]) as session:
            return run_parts(session, [part])

    return run_single
