"""Which trained models a stage has served, each at an address of its own."""

from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from flows.session import Session
from flows.trained import ModelServer, ModelServers, checkpoint_folder, checkpoints
from schemas.config import Config
from schemas.errors import StageRefused
from tasks.agent.attempt import PACKAGED, policy_role, shown_pixels, trained_pixels
from tasks.lake import Lake
from tasks.recipes import spotmini
from tasks.train import packaged

STAGES = ("sft", "cold_start", "grpo", "cold_start")


def models() -> pl.DataFrame:
    rows = [
        {"model_id": f"m{day}", "training_stage": stage, "checkpoint": f"models/m{day}", "recipe": "spotagent"}
        | {"written_at": datetime(2026, 1, day, tzinfo=UTC)}
        for day, stage in enumerate(STAGES, 1)
    ]
    other = {"model_id": "m9", "recipe": "geovista", "written_at": datetime(2026, 2, 1, tzinfo=UTC)}
    return pl.DataFrame([*rows, {**rows[2], **other}])


def asked(stage: str, **settings: object) -> list[str]:
    return list(checkpoints(Config.model_validate({stage: settings}), models(), stage))


def test_every_model_that_a_policy_names_is_served_once() -> None:
    assert asked("evaluate", policies=["a", "sft", "cold_start", "trained:m2"]) == ["m3", "m1", "m4", "m2"]
    assert asked("evaluate", policies=["grpo"]) == ["m3"], "the newest GRPO model is asked for anyway"
    assert asked("evaluate", policies=["a"], trained=False) == []
    assert asked("evaluate", policies=[], trained=False, scaling={"policies": ["cold_start"]}) == ["m4"]


def test_pass_at_k_serves_the_policy_that_is_measured() -> None:
    assert asked("difficulty", policy="cold_start") == ["m4"], "the newest one"
    assert asked("difficulty", policy="trained:m2") == ["m2"]
    assert asked("difficulty", policy="m1", endpoint="trained") == ["m1"]
    assert asked("difficulty", policy="answerer-base") == []
    assert asked("train") == []


def test_the_packaged_agent_is_a_policy_as_a_model_of_the_lake_is(tmp_path: Path) -> None:
    assert asked("evaluate", policies=[PACKAGED], trained=False) == [packaged.AGENT]
    assert asked("difficulty", policy=PACKAGED) == [packaged.AGENT]
    assert f"trained:{packaged.AGENT}" == PACKAGED
    folder, name = checkpoint_folder(Lake(str(tmp_path)), packaged.AGENT, "")
    assert (folder / "config.json").is_file()
    assert name == packaged.AGENT


def test_a_recipe_is_given_its_own_models_alone() -> None:
    assert asked("evaluate", policies=[], agent_recipe="geovista") == ["m9"]
    assert asked("evaluate", policies=["cold_start"], agent_recipe="geovista") == ["m9"], "no cold start of its own"
    assert asked("evaluate", policies=[], agent_recipe="thinking-with-map") == []
    assert asked("difficulty", policy="grpo", recipe="geovista") == ["m9"]
    with pytest.raises(StageRefused, match="newest cold_start model of recipe geovista, and the lake has none"):
        policy_role("cold_start", models(), "geovista")


def test_a_trained_model_is_shown_no_larger_pictures_than_in_training() -> None:
    configs = ['{"image_max_pixels": 12544, "image_min_pixels": 3136}', "{}", None, '{"image_max_pixels": 3000000, '
               '"image_min_pixels": 784}', "{}"]  # fmt: skip
    known = trained_pixels(models().with_columns(pl.Series("config_json", configs)))
    assert known.pop(PACKAGED) == (spotmini.MAX_PIXELS, spotmini.MIN_PIXELS)
    assert known == {"trained:m1": (12544, 3136), "trained:m4": (3000000, 784)}
    assert shown_pixels("trained:m1", known, 2_000_000, 40_000) == (12544, 3136)
    for policy in ("trained:m2", "trained:m4", "answerer-base"):
        assert shown_pixels(policy, known, 2_000_000, 40_000) == (2_000_000, 40_000), "as the settings say"


def test_servers_import_ahead_for_the_models_that_training_will_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(ModelServer, "import_ahead", lambda self: started.append(self.url))

    def ahead(stage: str, **changes: object) -> int:
        started.clear()
        config = Config.model_validate({"difficulty": {"policy": "sft"}, **changes})
        servers = ModelServers(Session(config, Lake(str(tmp_path))))
        servers.import_for(stage)
        servers.import_for(stage)
        taken = [servers.take(number).url for number in range(len(started))]
        assert taken == started
        assert servers.take(0).url not in taken
        servers.close()
        return len(taken)

    assert ahead("difficulty") == 1
    assert ahead("difficulty", difficulty={"policy": "answerer-base"}) == 0
    assert ahead("evaluate") == 1, "the newest model, although the lake has none yet"
    assert ahead("evaluate", evaluate={"policies": [PACKAGED, "sft"]}) == 3
    assert ahead("evaluate", evaluate={"trained": False}) == 0
    assert ahead("review") == 0
    assert ahead("evaluate", services={"trained": {"base_url": "http://127.0.0.1:9/v1"}}) == 0, "served by the user"
