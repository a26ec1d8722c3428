"""One training job: a folder that is resumed where it stopped and renamed into place when it is done."""

import contextlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.settings.train import TrainSettings
from tasks.runtime.steps import Steps
from tasks.train.checkpoints import Progress, full_disk_named, save_model, sync_folder
from tasks.train.loop import Loop, Program, Validate
from tasks.train.ranks import ALONE, Ranks
from tasks.train.result import BEST, RESULT, Result, finished_result, partial_folder
from tasks.train.stored import StoredJob


class Curves:
    """A writer that opens its file with the first figure; tensorboardX comes with Ray Train."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def add(self, step: int, figures: Mapping[str, float]) -> None:
        if self._writer is None:
            from tensorboardX import SummaryWriter

            self._folder.mkdir(parents=True, exist_ok=True)
            # What a killed run wrote after its last checkpoint is shown no more.
            self._writer = SummaryWriter(str(self._folder), purge_step=step)
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


@dataclass(frozen=True)
class Job:
    """What a job trains, and how."""

    model: Any
    processor: Any
    program: Program
    settings: TrainSettings
    weight_decay: float = 0.0
    validate: Validate | None = None
    ranks: Ranks = ALONE
    stored: StoredJob | None = None  # where its checkpoints are uploaded to


def run_job(
    folder: Path,
    make_job: Callable[[], Job],
    report: Callable[[Steps], None] = lambda steps: None,
    finish: Callable[[Path, Result], None] = lambda final, result: None,
) -> Result:
    """The finished job: trained from its last whole checkpoint, saved, and renamed to `folder`.

    `finish` may add files beside the weights.
    """
    done = finished_result(folder)
    if done is not None:
        return done
    partial = partial_folder(folder)
    partial.mkdir(parents=True, exist_ok=True)
    try:
        with full_disk_named(partial, "training"):
            return _run(folder, partial, make_job, report, finish)
    finally:
        with contextlib.suppress(OSError):  # of a job that wrote something
            partial.rmdir()


def _run(
    folder: Path,
    partial: Path,
    make_job: Callable[[], Job],
    report: Callable[[Steps], None],
    finish: Callable[[Path, Result], None],
) -> Result:
    job = make_job()
    ranks = job.ranks
    stored = job.stored if ranks.is_first else None
    curves = Curves(partial / "tensorboard")

    def keep_best() -> None:
        save_model(partial / BEST, job.model, job.processor, ranks)
        if stored is not None:
            stored.best_saved()

    loop = Loop(
        job.model, job.program, job.settings, partial, job.weight_decay, job.validate,
        report if ranks.is_first else lambda steps: None, curves.add if ranks.is_first else lambda step, figures: None,
        keep_best, ranks, (lambda path: None) if stored is None else stored.checkpoint_saved,
    )  # fmt: skip
    try:
        progress = loop.run()
    finally:
        curves.close()
    final = partial / "final"
    save_model(final, job.model, job.processor, ranks)
    result = _result(folder, progress)
    if not ranks.is_first:
        ranks.wait()
        shutil.rmtree(partial, ignore_errors=True)  # this node's copies
        return result
    if progress.best_step not in (None, progress.step) and (partial / BEST).is_dir():
        shutil.move(partial / BEST, final / BEST)
    shutil.copytree(partial / "tensorboard", final / "tensorboard", dirs_exist_ok=True)
    finish(final, result)
    (final / RESULT).write_text(result.as_json, encoding="utf-8")
    sync_folder(final)
    shutil.rmtree(folder, ignore_errors=True)  # a folder without a result is not a finished job
    final.rename(folder)
    shutil.rmtree(partial, ignore_errors=True)
    if stored is not None:
        stored.finished()
    ranks.wait()
    return result


def _result(folder: Path, progress: Progress) -> Result:
    return Result(folder, progress.step, progress.history, progress.validations, progress.warnings, progress.best_step)
