"""What `geofix up` was told, its deployments are told."""

from pathlib import Path

import pytest

from flows.background import deployed_options
from flows.options import RunOptions
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
