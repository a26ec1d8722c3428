"""The scheduled refresh: plan, collect, curate, and a snapshot with its report for the reviewer."""

from prefect import flow

from flows.options import RunOptions
from flows.order import parts_between
from flows.parts import run_parts
from flows.session import open_session
from tasks.runtime.outcome import StageResult


@flow(name="refresh")
def refresh(options: RunOptions | None = None) -> list[StageResult]:
    parts = parts_between("plan", "review")
    with open_session(options or RunOptions(), parts) as session:
        return run_parts(session, parts)
