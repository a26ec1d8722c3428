"""The scheduled refresh: plan, collect, curate, and a snapshot with its report for the reviewer."""

from prefect import State, flow

from flows.options import RunOptions
from flows.order import stages_of_flow
from flows.session import open_session
from flows.stages import run_stages
from flows.states import final_state
from tasks.runtime.items.outcome import StageResult


@flow(name="refresh")
def refresh(options: RunOptions = RunOptions()) -> State[list[StageResult]]:
    """Plan, collect, curate and review; leaves a snapshot and its report for the reviewer.

    Args:
        options: Which configuration to use: recipe, profile, file, lake and single settings.
    """
    stages = stages_of_flow("refresh")
    with open_session(options, stages) as session:
        return final_state(run_stages(session, stages))
