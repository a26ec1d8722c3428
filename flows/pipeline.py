"""The whole pipeline, or a stretch of it. Runs again from where it stopped: finished items are skipped."""

from prefect import flow

from flows.options import RunOptions
from flows.order import PARTS, parts_between
from flows.parts import run_parts
from flows.session import open_session
from tasks.runtime.outcome import StageResult


@flow(name="pipeline")
def pipeline(options: RunOptions | None = None, first: str = PARTS[0], last: str = PARTS[-1]) -> list[StageResult]:
    parts = parts_between(first, last)
    with open_session(options or RunOptions(), parts) as session:
        return run_parts(session, parts)
