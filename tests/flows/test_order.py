"""What the flows find in a stage's package."""

import pytest

from flows.order import STAGES, check_of, report_of, steps_of


@pytest.mark.parametrize("stage", STAGES)
def test_a_module_of_a_stage_is_not_taken_for_its_report_or_check(stage: str) -> None:
    assert steps_of(stage)
    for offered in (check_of(stage), report_of(stage)):
        assert offered is None or callable(offered)


def test_the_plan_offers_both_and_the_review_neither() -> None:
    assert check_of("plan") and report_of("plan")
    assert check_of("review") is None and report_of("review") is None
