"""What the flows find in a stage's package."""

import pytest

from flows.order import STAGES, check_of, report_of, segments, services_of, steps_of
from schemas.load import load_config


@pytest.mark.parametrize("stage", STAGES)
def test_a_module_of_a_stage_is_not_taken_for_its_report_or_check(stage: str) -> None:
    assert steps_of(stage)
    for offered in (check_of(stage), report_of(stage)):
        assert offered is None or callable(offered)


def test_the_plan_offers_both_and_the_review_neither() -> None:
    assert check_of("plan") and report_of("plan")
    assert check_of("review") is None and report_of("review") is None


AFTER = ("synthesize", "difficulty", "train", "evaluate")


def order(recipe: str, *overrides: str) -> list[str]:
    found = segments(load_config(recipe=recipe, overrides=overrides), AFTER)
    return [step.name for stage, steps in found if stage in ("difficulty", "train") for step in steps]


def test_pass_at_k_runs_after_the_phase_whose_model_it_measures() -> None:
    assert order("spotagent") == [
        "train.samples", "train.sft", "difficulty.attempts", "difficulty.regimes", "train.samples", "train.cold_start",
        "train.grpo",
    ]  # fmt: skip
    after = order("spotagent", "difficulty.policy=cold_start")
    assert after.index("difficulty.attempts") == after.index("train.cold_start") + 1
    before = order("spotagent", "difficulty.policy=answerer-base")
    assert before[:3] == ["difficulty.attempts", "difficulty.regimes", "train.samples"], "a model that is not trained"


def test_a_recipe_without_a_cold_start_writes_no_trajectories() -> None:
    stages = {
        recipe: [stage for stage, _ in segments(load_config(recipe=recipe), AFTER)]
        for recipe in ("thinking-with-map", "spotagent")
    }
    assert stages == {
        "thinking-with-map": ["train", "evaluate"],
        "spotagent": ["synthesize", "train", "difficulty", "train", "evaluate"],
    }
    alone = segments(load_config(recipe="thinking-with-map"), ["synthesize"])
    assert [stage for stage, _ in alone] == ["synthesize"], "if asked for"


def test_random_pictures_are_counted_by_pass_at_k() -> None:
    assert order("spotagent", "train.grpo.pictures=random") == order("spotagent")


@pytest.mark.parametrize("recipe", ["geovista", "geoagent", "thinking-with-map", "spotsft"])
def test_a_recipe_that_takes_all_pictures_measures_no_pass_at_k(recipe: str) -> None:
    assert order(recipe) == ["train.samples", "train.sft", "train.cold_start", "train.grpo"]
    assert [stage for stage, _ in segments(load_config(recipe=recipe), ["difficulty"])] == ["difficulty"], (
        "if asked for"
    )


def test_recorded_tools_need_no_service_but_those_of_models_and_rewards() -> None:
    def needed(recipe: str, *stages: str, frozen: bool) -> set[str]:
        mode = ("services.tools.mode=frozen", "services.tools.recording=tools.sqlite") if frozen else ()
        return services_of(load_config(recipe=recipe, overrides=mode), stages)

    assert needed("spotmini", "train", frozen=False) == {"geocoder"}
    assert needed("spotmini", "train", frozen=True) == set()
    assert needed("spotmini", "evaluate", frozen=True) == {"chat"}
    assert needed("geoagent", "train", frozen=True) == needed("geoagent", "train", frozen=False) != set()
