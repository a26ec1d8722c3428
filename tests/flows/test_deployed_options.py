"""What `geofix up` was told, its deployments are told."""

from pathlib import Path

import pytest
import yaml

from flows.background import ROOT, deployed_options
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


def test_the_lake_of_a_deployment_is_fixed() -> None:
    with pytest.raises(
        ConfigError, match=r"options\.lake: given 'elsewhere', but this deployment works on '/data/lake'"
    ):
        RunOptions(lake="elsewhere").on_top_of({"lake": "/data/lake"})
    assert RunOptions(lake="/data/lake").on_top_of({"lake": "/data/lake"}).lake == "/data/lake"
    # Neither a setting nor a file of a run leads elsewhere.
    assert RunOptions(overrides=["lake=elsewhere"]).on_top_of({"lake": "/data/lake"}).resolve().lake == "/data/lake"
    assert RunOptions(lake="mine").on_top_of({}).lake == "mine"


def test_what_is_documented_for_a_fresh_server_makes_the_work_pool_first() -> None:
    project = yaml.safe_load((ROOT / "prefect.yaml").read_text())
    [pool] = {one["work_pool"]["name"] for one in project["deployments"]}
    for file in ("prefect.yaml", "docs/flows.md"):
        text = (ROOT / file).read_text()
        assert 0 < text.index(f"prefect work-pool create {pool} --type process") < text.index("deploy --all"), file
