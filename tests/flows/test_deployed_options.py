"""What `geofix up` was told, its deployments are told."""

import os
from pathlib import Path

import pytest
import yaml
from prefect.blocks.system import Secret

from flows.background import ROOT, deployed_options
from flows.deployment import deployment_values, key_variables, keys_from_blocks, require_absolute_lake
from flows.options import RunOptions
from schemas.load import ConfigError
from tasks.lake import Lake


def test_a_deployment_resolves_the_same_settings_as_the_command(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("recipe: spotagent\nplan: {places: 7}\n")
    options = RunOptions(config=str(file), lake=str(tmp_path / "lake"), overrides=["plan.seed=3"])
    given = RunOptions.model_validate(deployed_options(options, Lake(options.resolve().lake)))
    assert given.resolve() == options.resolve()
    assert (given.resolve().recipe, given.resolve().plan.places) == ("spotagent", 7)


def test_a_file_is_found_from_the_workers_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text("plan: {places: 7}\n")
    monkeypatch.chdir(tmp_path)
    options = RunOptions(config="mine.yaml", lake=str(tmp_path / "lake"))
    assert deployed_options(options, Lake(options.resolve().lake))["config"] == str(tmp_path / "mine.yaml")


def test_options_of_a_flow_run_add_to_those_of_its_deployment() -> None:
    deployed = {"lake": "/data/lake", "profile": "production", "overrides": ["plan.places=5", "plan.seed=3"]}
    given = RunOptions.model_validate({"overrides": ["plan.places=9"], "recipe": None, "snapshot": "3c44bc07"})
    merged = given.on_top_of(deployed)
    assert (merged.lake, merged.profile, merged.recipe, merged.snapshot) == (
        "/data/lake", "production", None, "3c44bc07",
    )  # fmt: skip
    assert (merged.resolve().plan.places, merged.resolve().plan.seed) == (9, 3)
    assert merged.on_top_of(deployed) == merged, "a run that was suspended is given the merged ones"


def test_the_lake_of_a_deployment_is_fixed() -> None:
    with pytest.raises(
        ConfigError, match=r"options\.lake: given 'elsewhere', but this deployment works on '/data/lake'"
    ):
        RunOptions(lake="elsewhere").on_top_of({"lake": "/data/lake"})
    assert RunOptions(lake="/data/lake").on_top_of({"lake": "/data/lake"}).lake == "/data/lake"
    # Neither a setting nor a file of a run leads elsewhere.
    assert RunOptions(overrides=["lake=elsewhere"]).on_top_of({"lake": "/data/lake"}).resolve().lake == "/data/lake"
    assert RunOptions(lake="mine").on_top_of({}).lake == "mine"


def test_a_deployment_is_made_with_required_values_only() -> None:
    found = deployment_values(lake="s3://bucket/lake", profile="production", recipe="", config="", schedules="")
    assert found["options"] == {"lake": "s3://bucket/lake", "profile": "production"}
    assert found["schedules"] is False and found["tags"] == ["lake:s3://bucket/lake", "profile:production"]
    assert deployment_values("/data/lake", "offline", "/etc/own.yaml", schedules="on")["schedules"] is True


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "GEOFIX_LAKE and GEOFIX_PROFILE must be set"),
        ({"lake": "", "profile": "offline"}, "GEOFIX_LAKE must be set"),
        ({"lake": "lake", "profile": "offline"}, "given 'lake', but workers run in other folders"),
        ({"lake": "/l", "profile": "ofline"}, "did you mean 'offline'"),
        ({"lake": "/l", "profile": "offline", "config": "own.yaml"}, "GEOFIX_CONFIG: given 'own.yaml'"),
        ({"lake": "/l", "profile": "offline", "schedules": "yes"}, "GEOFIX_SCHEDULES: given 'yes'"),
        ({"lake": "s3://u:secret-word@b/l", "profile": "offline"}, "holds credentials"),
    ],
)
def test_what_is_wrong_with_them_ends_prefect_deploy_with_one_line(given: dict[str, str], why: str) -> None:
    with pytest.raises(SystemExit) as ended:  # of any other exception Prefect prints the whole traceback
        deployment_values(**given)
    assert str(ended.value).startswith("geofix: ") and why in str(ended.value)
    assert "\n" not in str(ended.value) and "secret-word" not in str(ended.value)


def test_a_run_of_a_deployment_without_a_fixed_lake_is_refused() -> None:
    for lake, why in ((None, "names no lake"), ("lake", "workers run in other folders")):
        with pytest.raises(ConfigError, match=why):
            require_absolute_lake(RunOptions(lake=lake))
    require_absolute_lake(RunOptions(lake="s3://bucket/lake"))


def test_keys_that_settings_name_are_looked_for_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunOptions(profile="production", lake="s3://bucket/lake").resolve()
    blocks = {"mapillary-token": "m", "openai-api-key": "o", "aws-secret-access-key": "a", "geofix-webhook": "w"}

    def load(name: str) -> Secret[str]:
        if name not in blocks:
            raise ValueError(f"Unable to find block document named {name}")
        return Secret(value=blocks[name])

    monkeypatch.setattr(Secret, "load", load)
    for name in ("MAPILLARY_TOKEN", "AWS_SECRET_ACCESS_KEY", "GEOFIX_WEBHOOK", "TAVILY_API_KEY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("OPENAI_API_KEY", "of the worker")
    assert sorted(keys_from_blocks(config)) == ["AWS_SECRET_ACCESS_KEY", "GEOFIX_WEBHOOK", "MAPILLARY_TOKEN"]
    assert (os.environ["MAPILLARY_TOKEN"], os.environ["OPENAI_API_KEY"]) == ("m", "of the worker")
    # Keys of an offline world are public: a real one in a block is not for it.
    assert "MAPILLARY_TOKEN" not in key_variables(RunOptions(profile="offline").resolve())


def test_what_is_documented_for_a_fresh_server_makes_the_work_pool_first() -> None:
    project = yaml.safe_load((ROOT / "prefect.yaml").read_text())
    [pool] = {one["work_pool"]["name"] for one in project["deployments"]}
    for file in ("prefect.yaml", "docs/flows.md"):
        text = (ROOT / file).read_text()
        assert 0 < text.index(f"prefect work-pool create {pool} --type process") < text.index("deploy --all"), file
