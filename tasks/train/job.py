"""One training job: a folder that is resumed where it stopped and renamed into place when it is done."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from schemas.errors import GeofixError
from schemas.settings.train import TrainSettings
from tasks.imaging.processor import ImageOnlyProcessor
from tasks.runtime.steps import Steps
from tasks.train.checkpoints import Progress, save_model, sync
from tasks.train.curves import Curves
from tasks.train.loop import Loop, Program, Validate
from tasks.train.ranks import ALONE, Ranks

RESULT = "result.json"
BEST = "best"  # folder of the weights with the best validation, where they are not the last ones
CLOCK = ("seconds", "tokens_per_s")  # differ between two equal runs


@dataclass(frozen=True)
class Result:
    """What a finished job leaves: its checkpoint's folder and its numbers."""

    checkpoint: Path
    steps: int
    history: list[dict[str, float]] = field(default_factory=list)
    validations: list[dict[str, float]] = field(default_factory=list)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    best_step: int | None = None

    @property
    def as_json(self) -> str:
        stored = {name: value for name, value in vars(self).items() if name != "checkpoint"}
        return json.dumps(stored, sort_keys=True)

    @property
    def metrics(self) -> dict[str, Any]:
        """One list a figure, in step order, without anything that depends on the clock."""
        names = sorted({name for entry in self.history for name in entry} - {"step", *CLOCK})
        curves: dict[str, Any] = {name: [entry.get(name) for entry in self.history] for name in names}
        return curves | {"validations": self.validations, "warnings": self.warnings, "best_step": self.best_step}


@dataclass(frozen=True)
class Job:
    """What a job trains, and how."""

    model: Any
    processor: ImageOnlyProcessor
    program: Program
    settings: TrainSettings
    weight_decay: float = 0.0
    validate: Validate | None = None
    ranks: Ranks = ALONE


def finished(folder: Path) -> Result | None:
    """The result of a job that was renamed into place, or nothing."""
    path = folder / RESULT
    if not path.exists():
        return None
    return Result(folder, **json.loads(path.read_text(encoding="utf-8")))


def partial_folder(folder: Path) -> Path:
    """Where a job works until it is done."""
    return folder.parent / f".{folder.name}.partial"


def run_job(
    folder: Path,
    make_job: Callable[[], Job],
    report: Callable[[Steps], None] = lambda steps: None,
    finish: Callable[[Path, Result], None] = lambda final, result: None,
) -> Result:
    """The finished job: trained from its last whole checkpoint, saved, and renamed to `folder`.

    `finish` may add files beside the weights.
    """
    done = finished(folder)
    if done is not None:
        return done
    partial = partial_folder(folder)
    partial.mkdir(parents=True, exist_ok=True)
    job = make_job()
    ranks = job.ranks
    curves = Curves(partial / "tensorboard")
    loop = Loop(
        job.model, job.program, job.settings, partial, job.weight_decay, job.validate,
        report if ranks.is_first else lambda steps: None, curves.add if ranks.is_first else lambda step, figures: None,
        lambda: save_model(partial / BEST, job.model, job.processor, ranks), ranks,
    )  # fmt: skip
    try:
        progress = loop.run()
    except torch.cuda.OutOfMemoryError as error:
        raise GeofixError(_too_large(job.settings, error)) from error
    finally:
        curves.close()
    final = partial / "final"
    save_model(final, job.model, job.processor, ranks)
    result = _result(folder, progress)
    if not ranks.is_first:
        ranks.wait()
        return result
    if progress.best_step not in (None, progress.step) and (partial / BEST).is_dir():
        shutil.move(partial / BEST, final / BEST)
    shutil.copytree(partial / "tensorboard", final / "tensorboard", dirs_exist_ok=True)
    finish(final, result)
    (final / RESULT).write_text(result.as_json, encoding="utf-8")
    sync(final)
    shutil.rmtree(folder, ignore_errors=True)  # a folder without a result is no finished job
    final.rename(folder)
    shutil.rmtree(partial, ignore_errors=True)
    ranks.wait()
    return result


def _result(folder: Path, progress: Progress) -> Result:
    return Result(folder, progress.step, progress.history, progress.validations, progress.warnings, progress.best_step)


def _too_large(settings: TrainSettings, error: BaseException) -> str:
    """What to change when a GPU's memory is full, cheapest first."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    if any(name.endswith(("engine.py", "cache.py", "source.py")) for name in frames):
        advice = f"lower train.grpo.rollout_groups (now {settings.grpo.rollout_groups}): it decides the key cache"
    elif any(name.endswith("optimizer.py") for name in frames) and settings.lora is None:
        advice = f"set train.states=int8 (now {settings.states}) or train adapters (train.lora.rank=64)"
    elif settings.gradient_checkpointing != "all":
        advice = (
            f"lower train.pack_tokens (now {settings.pack_tokens}) or set train.gradient_checkpointing=all (now "
            f"{settings.gradient_checkpointing})"
        )
    else:
        advice = f"lower train.pack_tokens (now {settings.pack_tokens}) or train.image_max_pixels"
    free, total = torch.cuda.mem_get_info()
    return (
        f"the GPU's memory is full ({free / 2**30:.0f} of {total / 2**30:.0f} GiB free): {advice}; `geofix train "
        "--dry-run` says what fits. Training goes on from its last checkpoint"
    )
