"""SFT, cold start and GRPO through the frame and Ray: real steps, resumable, and the same every time."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from bench.train_kills import by_text
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings
from schemas.settings.train import GrpoSettings, LoraSettings, TrainSettings, TunerSettings
from tasks.lake import Commit, Lake
from tasks.runtime.on_ray.start import stop_ray
from tasks.runtime.runner import Context, Kept, StageResult, run
from tasks.services import connect
from tasks.train import PHASES as STAGES
from tasks.train.chain import chain
from tasks.train.stage import WorkerContext, work

pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    yield
    stop_ray()


def context(lake: Lake) -> Context:
    return Context(lake, connect(ServicesSettings(), {}), SpreadSettings(workers=1, object_store_mb=80))


def train(lake: Lake, settings: TrainSettings) -> list[StageResult]:
    return [run(stage, settings, context(lake)) for stage in STAGES]


def test_the_whole_chain_is_trained_once(
    lake: Lake, filled: Callable[..., str], settings: Callable[..., TrainSettings]
) -> None:
    filled(lake)
    results = train(lake, settings())
    assert [(result.kept, result.rejected, result.failed) for result in results] == [
        (16, 0, 0),
        (1, 0, 0),
        (1, 0, 0),
        (1, 0, 0),
    ]
    models = {row["training_stage"]: row for row in lake.read("models").to_dicts()}
    assert models["grpo"]["parent_id"] == models["cold_start"]["model_id"]
    assert models["cold_start"]["parent_id"] == models["sft"]["model_id"]
    for row in models.values():
        folder = lake.root / row["checkpoint"]
        assert (folder / "model.safetensors").exists() and (folder / "chat_template.jinja").exists()
        metrics = json.loads(row["metrics_json"])
        assert len(metrics["loss"]) == row["steps"]
        assert not {"seconds", "tokens_per_s"} & metrics.keys(), "no clock among a model's figures"
        steps = lake.read("training_steps").filter(pl.col("model_id") == row["model_id"])
        assert steps.filter(pl.col("kind") == "step").sort("number")["loss"].to_list() == metrics["loss"]
        assert list((folder / "tensorboard").glob("events.*"))
        card = (folder / "README.md").read_text()
        assert "| CC BY-SA 4.0 |" in card and "geofix train --snapshot snapshot-1" in card
    sft = json.loads(models["sft"]["metrics_json"])["loss"]
    assert sft[-1] < sft[0]
    grpo = json.loads(models["grpo"]["metrics_json"])
    assert {"reward", "kl", "parse_failures"} <= grpo.keys()
    assert not list((lake.root / "models").glob(".*")), "nothing half-done is left"

    again = train(lake, settings())
    assert all(result.nothing_to_do for result in again)

    # A new snapshot with the same samples makes no new model; the row says which snapshot it was trained on.
    snapshot = lake.read("snapshots").row(0, named=True)
    newer = {"snapshot_id": "snapshot-2", "created_at": datetime.now(UTC)}
    lake.upsert("snapshots", [{**snapshot, **newer}], Commit("later", 1))
    assert all(result.nothing_to_do for result in train(lake, settings()))
    renewed = lake.read("models")
    assert renewed["snapshot_id"].unique().to_list() == ["snapshot-1"]
    assert set(renewed["model_id"]) == {row["model_id"] for row in models.values()}
    runs = lake.read("runs").filter(pl.col("stage") == "train.grpo").sort("started_at")
    assert runs["snapshot_id"].to_list() == ["snapshot-1", "snapshot-1", "snapshot-2"]


def test_a_stage_without_samples_is_rejected_not_broken(
    lake: Lake, filled: Callable[..., str], settings: Callable[..., TrainSettings]
) -> None:
    filled(lake)
    lake.tombstone("regimes", lake.read("regimes").select("image_id", "policy"), "none", Commit("later", 1))
    quick = settings(phases=("grpo",))
    results = train(lake, quick)
    assert [result.rejected for result in results] == [0, 0, 0, 1]
    assert results[1].total == 0, "a stage that is not configured has nothing to do"
    assert lake.read("rejects")["reason"].to_list() == ["no_samples"]


@pytest.mark.parametrize("stage", ["sft", "grpo"])
def test_adapters_are_trained_and_merged(
    stage: str, lake: Lake, filled: Callable[..., str], settings: Callable[..., TrainSettings]
) -> None:
    from safetensors.torch import load_file

    filled(lake)
    chosen = settings(phases=(stage,), lora=LoraSettings(rank=4, alpha=8))
    run(STAGES[0], chosen, context(lake))
    [link] = chain(lake.read("samples"), chosen)
    item = {"id": link.model_id, "training_stage": stage, "snapshot_id": "s", "samples": link.samples}
    outcome = work(item, WorkerContext(lake, chosen))
    assert isinstance(outcome, Kept)
    weights = load_file(lake.root / outcome.rows["models"][0]["checkpoint"] / "model.safetensors")
    assert not [name for name in weights if "lora" in name], "a checkpoint opens without PEFT"
    assert "model.layers.0.self_attn.q_proj.weight" in weights


KILLED = """
import os, signal, sys
from pathlib import Path
import tasks.train.stage as stage
from schemas.settings.train import TrainSettings
from tasks.lake import Lake
from tasks.runtime.steps import StepFile
from bench.train_kills import by_text
from tasks.train import training
from tasks.train.chain import chain

training.recipe_scorer = by_text
lake, settings = Lake(sys.argv[1]), TrainSettings.model_validate_json(sys.argv[2])

def write(self, steps):
    if steps.done == 3:
        # as a kill in the middle of saving leaves it: a newer checkpoint by halves
        [partial] = (lake.root / "models").glob(".*.partial")
        (partial / ".checkpoint-3").mkdir()
        (partial / ".checkpoint-3" / "weights.pt").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)

StepFile.write = write
[link] = chain(lake.read("samples"), settings)
item = {"id": link.model_id, "training_stage": link.phase, "snapshot_id": "s", "samples": link.samples}
stage.work(item, stage.WorkerContext(lake, settings))
"""


@pytest.mark.parametrize("stage", [pytest.param("sft", marks=pytest.mark.slow), "grpo"])
def test_a_killed_training_goes_on_to_the_same_weights(
    stage: str,
    tmp_path: Path,
    filled: Callable[..., str],
    settings: Callable[..., TrainSettings],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tasks.train.training.recipe_scorer", by_text)  # or GRPO would have nothing to learn from
    chosen = settings(
        phases=(stage,),
        save_steps=2,
        sft=TunerSettings(epochs=3, batch_size=4, micro_batch=2, learning_rate=3e-3),
        grpo=GrpoSettings(
            max_steps=5,
            group_size=4,
            prompts_per_generation=2,
            prompts_per_step=1,
            micro_batch=4,
            learning_rate=1e-3,
            max_completion_tokens=8,
        ),
    )
    rows, weights = [], []
    for is_killed in (False, True):
        lake = Lake(tmp_path / f"killed-{is_killed}")
        filled(lake)
        run(STAGES[0], chosen, context(lake))
        if is_killed:
            command = [sys.executable, "-c", KILLED, str(lake.root), chosen.model_dump_json()]
            assert subprocess.run(command, capture_output=True, check=False).returncode == -signal.SIGKILL
            [partial] = (lake.root / "models").glob(".*.partial")
            assert (partial / "checkpoint-2" / "progress.json").exists()
        [link] = chain(lake.read("samples"), chosen)
        item = {"id": link.model_id, "training_stage": stage, "snapshot_id": "s", "samples": link.samples}
        outcome = work(item, WorkerContext(lake, chosen))
        assert isinstance(outcome, Kept)
        rows += outcome.rows["models"]
        weights.append((lake.root / rows[-1]["checkpoint"] / "model.safetensors").read_bytes())
    assert rows[0] == rows[1]
    assert weights[0] == weights[1], "the same weights, bit for bit"
