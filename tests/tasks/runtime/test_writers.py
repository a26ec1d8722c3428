"""Two stages that declare one table are refused when the pipeline is assembled."""

from dataclasses import replace

import pytest

from flows.order import STAGES, steps_of
from flows.session import check_writers
from schemas.errors import GeofixError
from tasks import plan
from tasks.runtime.stage import refuse_second_writers


def test_the_pipeline_has_one_writer_for_each_table() -> None:
    refuse_second_writers(step for name in STAGES for step in steps_of(name))


def test_a_second_writer_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    second = replace(plan.STAGES[0], name="plan.again")
    monkeypatch.setattr(plan, "STAGES", [*plan.STAGES, second])
    with pytest.raises(GeofixError, match=r"steps plan and plan\.again both write table 'places'"):
        check_writers()


def test_one_name_for_two_stages_and_an_unknown_table_are_refused() -> None:
    [stage] = plan.STAGES
    with pytest.raises(GeofixError, match="two steps are named 'plan'"):
        refuse_second_writers([stage, stage])
    with pytest.raises(GeofixError, match=r"plan writes 'planets', which has no contract in schemas/tables/"):
        refuse_second_writers([replace(stage, writes=("planets",))])


def test_several_stages_may_write_a_shared_table() -> None:
    stages = list(steps_of("collect"))
    assert sum("images" in stage.writes for stage in stages) > 1
    refuse_second_writers(stages)
