"""The whole pipeline, or a stretch of it. Runs again from where it stopped: finished items are skipped.

Between review and what follows a person decides about the snapshot: a deployment suspends there (flows/decision.py).
"""

from prefect import State, flow

from flows.decision import failed_before, snapshot_approved, suspended_for
from flows.options import RunOptions, StageName
from flows.order import REVIEW, STAGES, stages_between
from flows.session import open_session
from flows.stages import run_stages
from flows.states import final_state
from tasks.runtime.items.outcome import StageResult


@flow(name="pipeline")
def pipeline(
    options: RunOptions = RunOptions(), first: StageName = STAGES[0], last: StageName = STAGES[-1]
) -> State[list[StageResult]]:
    """Every stage in order; waits after review until a person has approved the snapshot.

    Args:
        options: Which configuration to use: recipe, profile, file, lake and single settings.
        first: First stage to run.
        last: Last stage to run.
    """
    stages = stages_between(first, last)
    waits = REVIEW in stages[:-1]
    before = stages[: stages.index(REVIEW) + 1] if waits else []
    with open_session(options, stages) as session:
        if waits and not suspended_for(session.lake):
            run_stages(session, before)
        if waits:
            stopped = snapshot_approved(session)
            if stopped is not None:
                return stopped
        results = run_stages(session, stages[len(before) :])
        return final_state(results, failed_before(session.lake, results))
