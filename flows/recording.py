"""A flow with or without Prefect: a server records the run where one is named, else the flow is a plain function."""

import os
from collections.abc import Callable
from typing import Any

from prefect import Flow, State
from prefect.runtime import flow_run
from prefect.utilities.annotations import quote

from flows.session import running_flow


def is_recorded() -> bool:
    """Whether Prefect runs what is running."""
    return flow_run.id is not None


def run_flow(flow: Flow[..., Any], *arguments: Any, **parameters: Any) -> Any:
    """What the flow returns. Prefect's own server would take ten seconds to start, and none would look at it."""
    if os.environ.get("PREFECT_API_URL"):
        return flow(*arguments, **parameters)
    token = running_flow.set(flow.name)
    try:
        ended = flow.fn(*arguments, **parameters)
    finally:
        running_flow.reset(token)
    return ended.data if isinstance(ended, State) else ended


def run_task(task: Any, work: Any) -> None:
    """Run a task of Prefect's on this work, as a part of the flow."""
    if is_recorded():
        task(quote(work))  # quoted: Prefect looks for no futures inside
    else:
        task.fn(work)


def publish(create: Callable[..., Any], *arguments: Any, **artifact: Any) -> Any:
    """An artifact of the run, where it is recorded."""
    return create(*arguments, **artifact) if is_recorded() else None
