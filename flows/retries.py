"""Which failures of a stage are outages, worth another try in a while, and how the tries add up."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from schemas.errors import Outage
from tasks.runtime.outcome import StageResult
from tasks.services.errors import ServiceError

# Kinds of failed rows. Wrong input, refusals and used-up quotas fail the same way again, so they are not here.
OUTAGES = frozenset({"outage", "timeout", "rate_limit"})


class StageOutage(Outage):
    """Rows of a stage failed because a service was out; the same stage may do them a little later."""


def is_outage(error: Any) -> bool:
    """Whether the same stage may succeed later without a change of anything."""
    if isinstance(error, ServiceError):
        return error.retryable
    return isinstance(error, Outage)


def outages_of(result: StageResult) -> int:
    """Rows that failed because of an outage."""
    return sum(count for kind, count in result.failures.items() if kind in OUTAGES)


def merged(first: StageResult, retry: StageResult) -> StageResult:
    """Two tries of a stage as one result: the retry was given the rows that the first try could not do."""
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


def _sum(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
