"""The recipe `reverse` by the command line, from the plan to its own table, on the offline world."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.lake import Lake
from tasks.lake.names import KEY_FILE
from tasks.recipes.reverse.form import useful_in

pytestmark = pytest.mark.whole

SIZES = (
    "plan.places=6",
    "plan.countries=[DE, FR, GB]",
    "plan.split={train: 0.5, validation: 0, benchmark: 0.5}",
    "offline.port=8793",
    "collect.satellite.enabled=false",
    "curate.judge.view_max_pixels=300000",
    "review.auto_approve=true",
    "spread.workers=1",
    "synthesize.also=[]",
    "evaluate.split=train",  # of so few places none for the benchmark may be localizable
    "evaluate.max_images=1",
    *("train.sft.max_steps=3", "train.cold_start.max_steps=2", "train.grpo.max_steps=1"),
)


def geofix(lake: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    sets = [word for option in SIZES for word in ("--set", option)]
    command = [sys.executable, "-m", "flows.cli", *arguments, "--lake", str(lake), *sets]
    return subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    folder = tmp_path_factory.mktemp("reverse") / "lake"
    Lake(folder).blobs.put(KEY_FILE, b"5eed" * 16)  # the same pictures every time
    done = geofix(folder, "run", "--recipe", "reverse")
    assert done.returncode == 0, done.stderr[-3000:]
    return Lake(folder)


def test_every_part_of_it_did_its_work(made: Lake) -> None:
    assert made.read("failures").is_empty()
    kept = made.read("trajectories").filter(recipe="reverse", verdict="kept").to_dicts()
    asked = [call["name"] for row in kept for call in json.loads(row["calls_json"])]
    assert {"image_search", "text_search"} & set(asked)
    replies = [
        message["content"] if isinstance(message["content"], str) else ""
        for row in kept
        for message in json.loads(row["messages_json"])
        if message["role"] == "assistant"
    ]
    assert any(useful_in(reply) is not None for reply in replies), "what was useful is said after a search"
    models = {row["training_stage"]: row for row in made.read("models").to_dicts()}
    assert sorted(models) == ["cold_start", "grpo", "sft"]
    assert models["grpo"]["parent_id"] == models["cold_start"]["model_id"]
    metrics = json.loads(models["grpo"]["metrics_json"])
    assert {"reward/accuracy", "reward/form", "reward/tools", "behaviour/does not look"} <= set(metrics)


def test_its_own_table_is_printed(made: Lake) -> None:
    done = geofix(made.root, "reproduce", "reverse", "--table", "1", "--images", "1")
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)
    assert "here a Qwen3-VL of 2 layers with random weights is trained" in done.stdout
    for words in ("Im2GPS3k and YFCC4K by phase", "Qwen3-VL-4B", "+ SFT", "+ cold start", "REVERSE", "750km"):
        assert words in done.stdout, done.stdout
