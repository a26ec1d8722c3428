"""What Prefect's UI shows of a flow before it is started."""

from typing import Any

import pytest

from flows.order import STAGES, flow_of


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = flow_of(name).parameters.model_dump_for_openapi()
    return found


@pytest.mark.parametrize("name", ["pipeline", "refresh", *STAGES])
def test_every_flow_and_every_parameter_is_described(name: str) -> None:
    flow = flow_of(name)
    assert flow.name == name and flow.description
    shown = schema(name)
    assert all(one["description"] for one in shown["properties"].values())
    options = shown["definitions"]["RunOptions"]["properties"]
    assert all(one["description"] and one["title"] for one in options.values())
    assert "required" not in shown  # a schedule needs to say nothing


def test_choices_are_lists() -> None:
    shown = schema("pipeline")
    assert shown["properties"]["first"]["enum"] == shown["properties"]["last"]["enum"] == list(STAGES)
    options = shown["definitions"]["RunOptions"]["properties"]
    assert options["profile"]["anyOf"][0]["enum"] == ["miniature", "offline", "open", "production"]
    assert "spotagent" in options["recipe"]["anyOf"][0]["enum"]


def test_an_unknown_stage_is_refused_before_the_run_starts() -> None:
    with pytest.raises(Exception, match="there is no stage 'colect'; the stages are plan, collect"):
        flow_of("pipeline").validate_parameters({"first": "colect"})
