"""`geofix train` itself: two workers of Ray Train against one process, and commands that are ended with SIGKILL.

A tiny model on a CPU. Two workers must come to the parameters of one (1e-4 after all steps, as in train_workers);
GRPO draws other random numbers in each worker, so of it only its figures are looked at. A killed command is run
again and must come to the same bits as an undisturbed one.

    python -m bench.train_command --workers 2 --kills 2
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bench.goals import Goal, judge
from bench.training_lake import fill_lake, small_settings
from schemas.settings.train import ColdStartSettings, GrpoSettings, TunerSettings
from tasks.lake import Lake
from tasks.runtime.steps import StepFile

STAGES = ("sft", "cold_start", "grpo")
TUNER: dict[str, Any] = {"max_steps": 6, "batch_size": 5, "micro_batch": 2, "learning_rate": 3e-3}
LIMIT_S = 900.0


@dataclass
class Run:
    """What one command did."""

    seconds: float
    first_step_s: dict[str, float] = field(default_factory=dict)  # from the start of the command
    weights: dict[str, Any] = field(default_factory=dict)  # by stage


def prepared(folder: Path) -> Path:
    """A lake with an approved snapshot, and the settings beside it."""
    fill_lake(Lake(folder / "lake"), pictures=10, held_out=2)
    settings = small_settings(
        save_steps=2, validation_steps=3, validation_images=2, sft=TunerSettings(**TUNER, weight_decay=0.1),
        cold_start=ColdStartSettings(**TUNER, replay=1.0),
        grpo=GrpoSettings(
            max_steps=4, group_size=4, prompts_per_generation=4, prompts_per_step=2, micro_batch=4, kl=0.05,
            learning_rate=1e-3, max_completion_tokens=8,
        ),
    )  # fmt: skip
    config = {"recipe": "spotagent", "train": settings.model_dump(mode="json")}
    (folder / "settings.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return folder


def command(folder: Path, workers: int) -> list[str]:
    return [
        *(sys.executable, "-m", "flows.cli", "train", "--quiet", "--lake", str(folder / "lake")),
        *("--config", str(folder / "settings.yaml"), "--set", f"train.workers={workers}"),
    ]


def run(folder: Path, workers: int = 1) -> Run:
    """The command to its end, watched for when each stage takes its first step."""
    lake = Lake(folder / "lake")
    began = time.monotonic()
    done = Run(0.0)
    process = subprocess.Popen(command(folder, workers), stderr=subprocess.PIPE, text=True)
    while process.poll() is None:
        for stage in STAGES:
            found = StepFile(lake.state, f"train.{stage}").read()
            if stage not in done.first_step_s and found is not None and found.done > 0:
                done.first_step_s[stage] = time.monotonic() - began
        if time.monotonic() - began > LIMIT_S:
            process.kill()
            raise SystemExit("the command does not end")
        time.sleep(0.05)
    said = process.stderr.read() if process.stderr else ""
    if process.returncode != 0:
        raise SystemExit(f"exit code {process.returncode}: {said.strip()[-2000:]}")
    done.seconds = time.monotonic() - began
    done.weights = weights_of(lake)
    return done


def weights_of(lake: Lake) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {
        row["training_stage"]: load_file(lake.root / row["checkpoint"] / "model.safetensors")
        for row in lake.read("models").to_dicts()
    }


def apart(a: dict[str, Any], b: dict[str, Any]) -> float:
    """The largest difference, relative to the largest number of its tensor where that is above 1."""
    assert a.keys() == b.keys()
    return max(float((a[n] - b[n]).abs().max() / max(1.0, float(b[n].abs().max()))) for n in a)


def together(workers: int, shards: tuple[str, ...] = ("full", "none")) -> list[Goal]:
    """One process, then several."""
    goals = []
    with tempfile.TemporaryDirectory(prefix="geofix-train-") as name:
        alone = prepared(Path(name) / "alone")
        one = run(alone)
        _tell("one process", one)
        for shard in shards:
            folder = Path(name) / shard
            prepared(folder)
            settings = yaml.safe_load((folder / "settings.yaml").read_text(encoding="utf-8"))
            settings["train"]["shard"] = shard
            (folder / "settings.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
            several = run(folder, workers)
            _tell(f"{workers} workers, shard {shard}", several)
            for stage in ("sft", "cold_start"):
                found = apart(several.weights[stage], one.weights[stage])
                goals.append(Goal(f"{stage}, shard {shard}: parameters, difference", found, at_most=1e-4))
            rows = Lake(folder / "lake").read("training_steps")
            grpo = rows.filter((rows["training_stage"] == "grpo") & (rows["kind"] == "step"))
            goals.append(Goal(f"grpo, shard {shard}: steps", grpo.height, at_least=4, at_most=4))
    return goals


def killed(kills: int, seed: int = 0) -> list[Goal]:
    """Commands ended at a random step of a random stage, and run again."""
    rng = random.Random(seed)
    same = 0
    with tempfile.TemporaryDirectory(prefix="geofix-train-") as name:
        expected = run(prepared(Path(name) / "undisturbed")).weights
        for number in range(kills):
            folder = prepared(Path(name) / f"killed-{number}")
            stage, step = rng.choice(STAGES), rng.randrange(1, 4)
            process = subprocess.Popen(command(folder, 1), stderr=subprocess.DEVNULL)
            steps = StepFile(Lake(folder / "lake").state, f"train.{stage}")
            end = time.monotonic() + LIMIT_S
            while process.poll() is None and time.monotonic() < end:
                found = steps.read()
                if found is not None and found.done >= step:
                    break
                time.sleep(0.01)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            weights = run(folder).weights
            equal = all(
                weights[one].keys() == expected[one].keys()
                and all(bool((weights[one][key] == expected[one][key]).all()) for key in expected[one])
                for one in STAGES
            )
            same += equal
            print(f"   ended in {stage} at step {step}: {'the same bits' if equal else 'OTHER BITS'}", flush=True)
    return [Goal("killed commands that came to the same bits", same, at_least=kills)]


def _tell(what: str, done: Run) -> None:
    first = json.dumps({stage: round(seconds, 1) for stage, seconds in done.first_step_s.items()})
    print(f"   {what}: {done.seconds:.1f} s, first step of each stage after {first} s", flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=2, help="commands that are ended; 0: none")
    options = parser.parse_args(arguments or [])
    goals = together(options.workers) if options.workers > 1 else []
    return judge([*goals, *(killed(options.kills) if options.kills else [])])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
