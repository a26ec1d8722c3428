"""The folder that verl trains from: what is in it, and, where verl is installed, what verl's own code makes of it."""

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import yaml
from typer.testing import CliRunner

from bench import verl
from bench.verl import configuration
from flows.cli import app
from schemas.errors import InputError
from schemas.load import load_config
from tasks.lake import Lake
from tasks.train.verl_folder import curriculum_order, write_verl_folder
from tasks.train.verl_hook import compute_score


@pytest.fixture
def filled_lake(lake: Lake, filled: Callable[..., str]) -> Lake:
    filled(lake, held_out=2)
    return lake


def test_questions_tools_reward_and_launch_lie_in_one_folder(filled_lake: Lake, tmp_path: Path) -> None:
    config = configuration("geovista", tmp_path / "lake")
    done = write_verl_folder(filled_lake, config, tmp_path / "out", "/models/m")
    assert (done.train, done.validation, done.tools) == (5, 2, 2), "all pictures, not those that Pass@K keeps"
    rows = pl.read_parquet(done.folder / "train.parquet").to_dicts()
    for number, row in enumerate(rows):
        said = "".join(turn["content"] for turn in row["prompt"])
        assert said.count("<image>") == len(row["images"]) == 1
        assert [turn["role"] for turn in row["prompt"]] == ["system", "user"] and "<tools>" not in said
        assert row["data_source"] == "geofix/geovista" and row["agent_name"] == "tool_agent"
        assert row["extra_info"]["index"] == number and row["licence"] == "CC BY-SA 4.0"
        zoomed = row["extra_info"]["tools_kwargs"]["image_zoom_in_tool"]["create_kwargs"]["picture"]
        assert (done.folder / zoomed).read_bytes() == filled_lake.images.read(Path(zoomed).stem, "jpg")
        truth = json.loads(row["reward_model"]["ground_truth"])
        assert truth["country"] not in said and str(truth["lat"]) not in said
    launch = yaml.safe_load((done.folder / "launch.yaml").read_text())
    assert launch["actor_rollout_ref"]["model"]["path"] == "/models/m"
    assert launch["actor_rollout_ref"]["rollout"]["n"] == config.train.grpo.group_size
    assert launch["actor_rollout_ref"]["actor"]["use_kl_loss"] is False
    read = load_config(file=done.folder / "settings.yaml")
    assert read.train == config.train and read.services == config.services, "what reward and tools are given"
    tools = yaml.safe_load((done.folder / "tools.yaml").read_text())["tools"]
    assert [tool["config"]["tool"] for tool in tools] == ["image_zoom_in_tool", "search_web"]
    assert [tool["config"]["limits"] for tool in tools] == [[10, None]] * 2, "pages of a search"
    assert "VERL_USE_EXTERNAL_MODULES=tasks.train.verl_estimator" in (done.folder / "launch.sh").read_text()


def test_recipes_without_tools_have_no_tool_files(filled_lake: Lake, tmp_path: Path) -> None:
    config = configuration("spotagent", tmp_path / "lake")
    done = write_verl_folder(filled_lake, config, tmp_path / "out", "/models/m")
    assert sorted(path.name for path in done.folder.iterdir()) == [
        "launch.sh", "launch.yaml", "reward.py", "settings.yaml", "train.parquet", "validation.parquet",
    ]  # fmt: skip
    launch = yaml.safe_load((done.folder / "launch.yaml").read_text())
    assert launch["actor_rollout_ref"]["actor"]["kl_loss_coef"] == 0.001
    rollout = launch["actor_rollout_ref"]["rollout"]
    assert (rollout["tensor_model_parallel_size"], rollout["gpu_memory_utilization"]) == (2, 0.8), "Table 7"
    with pytest.raises(InputError, match="is there already; name a new folder"):
        write_verl_folder(filled_lake, config, tmp_path / "out", "/models/m")


def test_the_answer_stands_after_the_last_tools_words() -> None:
    truth = {"lat": 10.0, "lon": 20.0, "country": "A", "city": "B"}
    told = "Latitude: 10.0\nLongitude: 20.0"
    read = "<tool_response>\nLatitude: 10.0\nLongitude: 20.0\n</tool_response>\nassistant\nI do not know."
    assert compute_score("geofix/spotagent", told, truth)["score"] == 1.0
    assert compute_score("geofix/spotagent", read, truth)["score"] == 0.0, "what a tool said is no answer"


def test_the_command_writes_it_and_says_what_is_missing(filled_lake: Lake, tmp_path: Path) -> None:
    given = ["verl", "--lake", str(filled_lake.root), "--out", str(tmp_path / "out")]
    bare = CliRunner().invoke(app, given)
    assert bare.exit_code == 2 and "which is not trained yet: train it, or name one with --model" in bare.stderr
    assert not (tmp_path / "out").exists()
    done = CliRunner().invoke(app, [*given, "--model", "/models/m", "--json"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["train"] == 3
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".out")] == []


@pytest.mark.slow
@pytest.mark.skipif(not (verl.FOLDER / "verl").is_dir(), reason="verl is not installed: run `python -m bench verl`")
def test_verls_own_code_reads_scores_and_computes_the_same() -> None:
    assert verl.check().returncode == 0


def test_phase_ii_mixes_both_phases() -> None:
    rows = [{"sha256": digit, "phase": 1 if digit in "59" else 2} for digit in "9142853607"]
    order = [row["sha256"] for row in curriculum_order(rows, 2.0)]
    assert order == list("9595") + list("0123456789012345")
    assert curriculum_order(rows, 0.5)[:1] == rows[:1] and len(curriculum_order(rows, 0.5)) == 5
    alone = [{"sha256": digit, "phase": None} for digit in "31"]
    assert curriculum_order(alone, 2.0) == alone * 2, "without a curriculum the rows keep their order"
    assert [row["sha256"] for row in curriculum_order([*rows[1:5]], 1.0)] == list("1248")
