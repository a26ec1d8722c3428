"""How tasks and flows end: final states, whose names automations can match, and outages, which are tried again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from prefect import State
from prefect.states import Completed

from schemas.errors import Outage
from tasks.runtime.items.outcome import StageResult
from tasks.services.errors import ServiceError

FAILED_ROWS = "FailedRows"  # everything ran, but some rows failed and are retried by the next run
WAITING = "WaitingForReview"  # the snapshot is pending, and this run cannot wait for the decision
REJECTED = "Rejected"  # the reviewer rejected the snapshot
# Kinds of failed rows. Wrong input, refusals and used-up quotas fail the same way again, so they are not here.
OUTAGES = frozenset({"outage", "timeout", "rate_limit"})


def final_state(results: list[StageResult], before: Mapping[str, int] | None = None) -> State[list[StageResult]]:
    """Completed, or FailedRows with where and why; `before` holds failed rows by step from before a suspension."""
    return state_of(results, results, before)


def step_state(result: StageResult) -> State[StageResult]:
    """The same for one step's task."""
    return state_of(result, [result])


def state_of(data: Any, results: Sequence[StageResult], before: Mapping[str, int] | None = None) -> State[Any]:
    """The same with any data as the result of the run."""
    where = [f"{count:,} rows failed in {stage}" for stage, count in (before or {}).items()]
    where += [
        f"{result.failed:,} rows failed in {result.stage} ({_kinds(result)})" for result in results if result.failed
    ]
    if not where:
        return Completed(data=data)
    return Completed(name=FAILED_ROWS, message=f"{', '.join(where)}; retried by the next run", data=data)


def _kinds(result: StageResult) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in sorted(result.failures.items()))


class StepOutage(Outage):
    """Rows of a step failed because a service was out; the same step may do them a little later."""


def is_outage(error: Any) -> bool:
    """Whether the same step may succeed later without a change of anything."""
    if isinstance(error, ServiceError):
        return error.retryable
    return isinstance(error, Outage)


def outages_of(result: StageResult) -> int:
    """Rows that failed because of an outage."""
    return sum(count for kind, count in result.failures.items() if kind in OUTAGES)


def merged(first: StageResult, retry: StageResult) -> StageResult:
    """Two tries of a step as one result: the retry was given the rows that the first try could not do."""
    kept, rejected = first.kept + retry.kept, first.rejected + retry.rejected
    return replace(
        retry,
        skipped=first.skipped,
        items_in=kept + rejected + retry.failed,
        kept=kept,
        rejected=rejected,
        rejects=_sum(first.rejects, retry.rejects),
        usage=first.usage + retry.usage,
        seconds=first.seconds + retry.seconds,
        starting_s=first.starting_s + retry.starting_s,
        paused_s=_sum(first.paused_s, retry.paused_s),
    )


def _sum(first: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {name: first.get(name, 0) + other.get(name, 0) for name in {**first, **other}}
