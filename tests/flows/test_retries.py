"""Which failures are tried again, and how the tries of a stage add up."""

import pytest

from flows.states import StepOutage, final_state, is_outage, merged, outages_of, step_state
from schemas.errors import GeofixError, InputError, LakeError, StageRefused
from schemas.messages import Usage
from tasks.runtime.items.outcome import StageResult
from tasks.runtime.on_ray.watch import RayLost
from tasks.services.errors import ServiceError


def result(stage: str = "collect", **counts: object) -> StageResult:
    plain = {
        **{"run_id": "r", "status": "done", "input_versions": {}, "output_versions": {}, "total": 10, "skipped": 0},
        **{"items_in": 0, "kept": 0, "rejected": 0, "failed": 0, "rejects": {}, "failures": {}, "totals": {}},
        **{"total_rejects": {}, "usage": Usage(), "seconds": 1.0},
    }
    return StageResult(stage=stage, **{**plain, **counts})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (RayLost("the head is gone"), True),
        (StepOutage("3 rows failed"), True),
        (ServiceError("stac", "outage", "down", retryable=True), True),
        (ServiceError("stac", "auth", "key refused"), False),
        (ServiceError("mapillary", "rate_limit", "the day's requests are used up"), False),
        (InputError("no such file"), False),
        (StageRefused("not approved"), False),
        (LakeError("disk full"), False),
        (GeofixError("anything else"), False),
        (ZeroDivisionError(), False),
    ],
)
def test_only_outages_are_tried_again(error: Exception, again: bool) -> None:
    assert is_outage(error) is again


def test_rows_that_failed_for_another_reason_are_no_outage() -> None:
    failures = {"outage": 2, "timeout": 1, "rate_limit": 1, "bad_response": 5, "quota": 7, "worker_died": 1}
    assert outages_of(result(failures=failures)) == 4


def test_the_tries_of_a_stage_add_up_to_one_account() -> None:
    first = result(
        items_in=10, kept=6, rejected=1, failed=3, rejects={"dark": 1}, failures={"outage": 3}, seconds=2.0,
        usage=Usage(requests=4, prompt_tokens=10), paused_s={"stac": 1.0},
    )  # fmt: skip
    retry = result(
        items_in=3, skipped=7, kept=1, rejected=1, failed=1, rejects={"blurred": 1}, failures={"outage": 1},
        usage=Usage(requests=1, prompt_tokens=5), paused_s={"stac": 0.5},
    )  # fmt: skip
    both = merged(first, retry)
    assert (both.items_in, both.kept, both.rejected, both.failed, both.skipped) == (10, 7, 2, 1, 0)
    assert both.rejects == {"dark": 1, "blurred": 1} and both.failures == {"outage": 1}
    assert (both.seconds, both.usage.requests, both.usage.prompt_tokens) == (3.0, 5, 15)
    assert both.paused_s == {"stac": 1.5}


def test_failed_rows_are_named_in_the_state() -> None:
    good, bad = result("plan", kept=3), result("collect.satellite", failed=3, failures={"outage": 2, "timeout": 1})
    plain, marked = final_state([good]), final_state([good, bad])
    assert (plain.type.value, plain.name) == ("COMPLETED", "Completed")
    assert (marked.type.value, marked.name) == ("COMPLETED", "FailedRows")
    assert marked.message == "3 rows failed in collect.satellite (2 outage, 1 timeout); retried by the next run"
    assert marked.data == [good, bad]
    assert step_state(bad).name == "FailedRows" and step_state(good).name == "Completed"
    resumed = final_state([good], {"collect.satellite": 2})
    assert (resumed.name, resumed.message) == (
        "FailedRows",
        "2 rows failed in collect.satellite; retried by the next run",
    )
