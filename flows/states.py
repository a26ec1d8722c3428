"""The final states of tasks and flows. Automations can match on their names."""

from collections.abc import Mapping, Sequence
from typing import Any

from prefect import State
from prefect.states import Completed

from tasks.runtime.outcome import StageResult

FAILED_ROWS = "FailedRows"  # everything ran, but some rows failed and are retried by the next run
WAITING = "WaitingForReview"  # the snapshot is pending, and this run cannot wait for the decision
REJECTED = "Rejected"  # the reviewer rejected the snapshot


def final_state(results: list[StageResult], before: Mapping[str, int] | None = None) -> State[list[StageResult]]:
    """Completed, or FailedRows with where and why; `before` holds failed rows by stage from before a suspension."""
    return state_of(results, results, before)


def stage_state(result: StageResult) -> State[StageResult]:
    """The same for one stage's task."""
    return state_of(result, [result])


def state_of(data: Any, results: Sequence[StageResult], before: Mapping[str, int] | None = None) -> State[Any]:
    """The same with any data as the result of the run."""
    where = [f"{count:,} rows failed in {stage}" for stage, count in (before or {}).items()]
    where += [f"{one.failed:,} rows failed in {one.stage} ({_kinds(one)})" for one in results if one.failed]
    if not where:
        return Completed(data=data)
    return Completed(name=FAILED_ROWS, message=f"{', '.join(where)}; retried by the next run", data=data)


def _kinds(result: StageResult) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in sorted(result.failures.items()))
