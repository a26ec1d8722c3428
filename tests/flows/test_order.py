"""What the flows find in a part's package."""

import pytest

from flows.order import PARTS, check_of, report_of, stages_of


@pytest.mark.parametrize("part", PARTS)
def test_a_module_of_a_part_is_not_taken_for_its_report_or_check(part: str) -> None:
    assert stages_of(part)
    for offered in (check_of(part), report_of(part)):
        assert offered is None or callable(offered)


def test_the_plan_offers_both_and_the_review_neither() -> None:
    assert check_of("plan") and report_of("plan")
    assert check_of("review") is None and report_of("review") is None
