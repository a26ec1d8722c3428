"""The whole pipeline, or a stretch of it. Runs again from where it stopped: finished items are skipped.

Between review and what follows a person decides about the snapshot: a deployment suspends there (flows/decision.py).
"""

from prefect import State, flow

from flows.decision import failed_before, snapshot_approved, suspended_for
from flows.options import PartName, RunOptions
from flows.order import PARTS, REVIEW, parts_between
from flows.parts import run_parts
from flows.session import open_session
from flows.states import final_state
from tasks.runtime.outcome import StageResult


@flow(name="pipeline")
def pipeline(
    options: RunOptions = RunOptions(), first: PartName = PARTS[0], last: PartName = PARTS[-1]
) -> State[list[StageResult]]:
    """Every part in order; waits after review until a person has approved the snapshot.

    Args:
        options: Which configuration to use: recipe, profile, file, lake and single settings.
        first: First part to run.
        last: Last part to run.
    """
    parts = parts_between(first, last)
    waits = REVIEW in parts[:-1]
    before = parts[: parts.index(REVIEW) + 1] if waits else []
    with open_session(options, parts) as session:
        if waits and not suspended_for(session.lake):
            run_parts(session, before)
        if waits:
            stopped = snapshot_approved(session)
            if stopped is not None:
                return stopped
        results = run_parts(session, parts[len(before) :])
        return final_state(results, failed_before(session.lake, results))
