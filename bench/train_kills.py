"""Kill a training stage at random moments, resume it, and compare every tensor with an undisturbed run.

Each trial trains a tiny model in a process of its own, ends that process with SIGKILL (between two steps, inside one,
while a checkpoint or the trained model is being written), and starts it again until it is done. On a CPU the weights
must be the same bit by bit, and so must all figures that do not depend on the clock.

    python -m bench.train_kills --kills 10
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.goals import Goal, judge
from bench.training_lake import fill_lake, small_settings
from schemas.settings.train import ColdStartSettings, GrpoSettings, TrainSettings, TunerSettings
from tasks.lake import Commit, Lake

STAGES = ("sft", "cold_start", "grpo")
MOMENTS = ("step", "checkpoint", "step", "model", "step")  # where the kills of a stage are aimed at, in this order
CLOCK = ("seconds", "tokens_per_s")
LIMIT_S = 600.0  # of one training process; a run that takes longer hangs
PRELOADED = [  # imported once rather than in every process
    "tasks.train.training", "tasks.train.card", "tasks.train.stage", "tensorboardX",
    "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl",
]  # fmt: skip
_fork = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Trial:
    """What one trial left behind."""

    moment: str
    step: int  # that was reported when the process was ended
    is_halved: bool  # a checkpoint or a model lay there by halves
    is_same: bool


def settings_of(stage: str) -> TrainSettings:
    """A dozen quick steps with a checkpoint after every second one and a validation after every third."""
    tuner: dict[str, Any] = {"max_steps": 12, "batch_size": 3, "micro_batch": 2, "learning_rate": 3e-3}
    return small_settings(
        phases=(stage,),
        save_steps=2,
        validation_steps=3,
        validation_images=2,
        sft=TunerSettings(**tuner, weight_decay=0.1),
        cold_start=ColdStartSettings(**tuner, replay=1.0),
        grpo=GrpoSettings(
            max_steps=12, group_size=4, prompts_per_generation=2, prompts_per_step=1, micro_batch=4,
            learning_rate=1e-3, max_completion_tokens=8, patience=1,
        ),
    )  # fmt: skip


def by_text(*_: Any) -> Callable[[Any], Any]:
    """Rewards that differ inside a group: a tiny model's answers would all be unread and worth 0."""
    from tasks.train.rollouts.source import Judged

    return lambda pairs: [Judged(zlib.crc32(episode.answer.encode()) / 2**32) for episode, _ in pairs]


def train(root: str, settings_json: str, out: str) -> None:
    """The stage's own work in this process; its rows go to the file `out`."""
    from tasks.runtime.runner import Kept
    from tasks.train import training
    from tasks.train.chain import chain
    from tasks.train.stage import WorkerContext, work

    training.recipe_scorer = by_text  # type: ignore[assignment]
    lake, settings = Lake(Path(root)), TrainSettings.model_validate_json(settings_json)
    [link] = chain(lake.read("samples"), settings)
    item = {
        "id": link.model_id, "training_stage": link.phase, "snapshot_id": "s", "samples": link.samples,
    }  # fmt: skip
    outcome = work(item, WorkerContext(lake, settings))
    assert isinstance(outcome, Kept)
    steps = [{k: v for k, v in row.items() if k not in CLOCK} for row in outcome.rows["training_steps"]]
    Path(out).write_text(json.dumps([outcome.rows["models"], steps]), encoding="utf-8")


def prepared(folder: Path, settings: TrainSettings) -> Lake:
    """A lake with the samples of the stage."""
    from tasks.runtime.stage import open_inputs
    from tasks.train.samples import STAGE, compute

    lake = Lake(folder)
    fill_lake(lake, pictures=10, held_out=2)
    samples, _ = compute(open_inputs(STAGE, lake), settings)
    lake.upsert("samples", samples.drop("id").to_dicts(), Commit("train.samples", 1))
    return lake


def started(lake: Lake, settings: TrainSettings, out: Path) -> Any:
    process = _fork.Process(target=train, args=(str(lake.root), settings.model_dump_json(), str(out)))
    process.start()
    return process


def finish(lake: Lake, settings: TrainSettings, out: Path) -> tuple[Any, dict[str, bytes]]:
    """Train to the end; the rows, and the bytes of every tensor of the model."""
    from safetensors.torch import load_file

    process = started(lake, settings, out)
    process.join(LIMIT_S)
    if process.exitcode != 0:
        raise SystemExit(f"training ended with exit code {process.exitcode} in {lake.root}")
    rows = json.loads(out.read_text(encoding="utf-8"))
    weights = load_file(lake.root / rows[0][0]["checkpoint"] / "model.safetensors")
    tensors = {name: one.contiguous().flatten().view(-1).numpy().tobytes() for name, one in weights.items()}
    return rows, tensors


def wait_for(process: Any, is_reached: Callable[[], bool]) -> None:
    """Until the moment has come, or the process ended by itself."""
    end = time.monotonic() + LIMIT_S
    while process.is_alive() and not is_reached():
        if time.monotonic() > end:
            raise SystemExit("the moment to end the process never came")
        time.sleep(0.0005)


def kill_once(lake: Lake, settings: TrainSettings, moment: str, rng: random.Random, out: Path) -> tuple[int, bool]:
    """Start training and end it with SIGKILL; the step it had reported, and whether something lay there by halves."""
    from tasks.runtime.steps import StepFile

    steps = StepFile(lake.state, f"train.{settings.phases[0]}")
    steps.path.unlink(missing_ok=True)
    models = lake.root / "models"
    last = 12
    process = started(lake, settings, out)

    def done() -> int:
        found = steps.read()
        return -1 if found is None else found.done

    if moment == "step":
        wanted, pause = rng.randrange(0, last), rng.random() * 0.1
        wait_for(process, lambda: done() >= wanted)
        time.sleep(pause)
    elif moment == "checkpoint":
        wanted = 2 * rng.randrange(1, last // 2)
        wait_for(process, lambda: any(models.glob(f".*.partial/.checkpoint-{wanted}/*")))
        time.sleep(rng.random() * 0.004)
    else:
        wait_for(process, lambda: any(models.glob(".*.partial/final/*")))
        time.sleep(rng.random() * 0.02)
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    halved = [*models.glob(".*.partial/.checkpoint-*"), *models.glob(".*.partial/final")]
    return done(), bool(halved)


def trials(stage: str, kills: int, folder: Path, rng: random.Random) -> list[Trial]:
    """One stage: an undisturbed run, then a run for each kill."""
    settings = settings_of(stage)
    lake = prepared(folder / stage, settings)
    out = folder / f"{stage}.json"
    expected = finish(lake, settings, out)
    found = []
    for number in range(kills):
        shutil.rmtree(lake.root / "models")
        moment = MOMENTS[number % len(MOMENTS)]
        step, is_halved = kill_once(lake, settings, moment, rng, out)
        same = finish(lake, settings, out) == expected and not list((lake.root / "models").glob(".*"))
        found.append(Trial(moment, step, is_halved, same))
    return found


def run(kills: int = 10, seed: int = 0, stages: tuple[str, ...] = STAGES) -> dict[str, list[Trial]]:
    _fork.set_forkserver_preload(PRELOADED)
    found = {}
    with tempfile.TemporaryDirectory(prefix="geofix-kills-") as folder:
        for stage in stages:
            began = time.monotonic()
            found[stage] = trials(stage, kills, Path(folder), random.Random(f"{seed}/{stage}"))
            moments = Counter(one.moment for one in found[stage])
            halved = sum(one.is_halved for one in found[stage])
            same = sum(one.is_same for one in found[stage])
            print(
                f"   {stage:10} {same} of {kills} resumed to the same bits; ended at steps "
                f"{' '.join(str(one.step) for one in found[stage])} ({dict(moments)}); {halved} left something by "
                f"halves ({time.monotonic() - began:.0f} s)", flush=True,
            )  # fmt: skip
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=10, help="of each stage")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments or [])
    found = run(options.kills, options.seed)
    return judge(
        [
            goal
            for stage, several in found.items()
            for goal in (
                Goal(f"{stage}: runs with the same bits", sum(one.is_same for one in several), at_least=options.kills),
                Goal(f"{stage}: kills that left something by halves", sum(one.is_halved for one in several),
                     at_least=1 if options.kills >= len(MOMENTS) else 0),
            )
        ]
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
