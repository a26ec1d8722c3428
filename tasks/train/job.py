"""One training job: a folder that is resumed where it stopped and renamed into place when it is done."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, TrainerCallback

from tasks.imaging.processor import ImageOnlyProcessor
from tasks.runtime.steps import Steps

COMPLETE = "complete"  # Trainer writes a checkpoint's files one by one; this one is written after all of them
RESULT = "result.json"

# What a step's log may hold in the table. Seconds and rates differ between two equal runs, so they stay out.
METRICS = (
    "loss",
    "grad_norm",
    "learning_rate",
    "mean_token_accuracy",
    "reward",
    "reward_std",
    "frac_reward_zero_std",
    "kl",
    "entropy",
    "completions/mean_length",
    "completions/clipped_ratio",
    "parse_failures",
)


@dataclass(frozen=True)
class Result:
    """What a finished job leaves: its checkpoint's folder and its numbers."""

    checkpoint: Path
    steps: int
    metrics: dict[str, list[float]]

    @property
    def as_json(self) -> str:
        return json.dumps({"steps": self.steps, "metrics": self.metrics}, sort_keys=True)


class MarkComplete(TrainerCallback):
    """Marks a checkpoint once everything in it is written."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        _sync(folder)
        (folder / COMPLETE).touch()


class ReportSteps(TrainerCallback):
    """Tells after every step how far training is, with its loss or reward."""

    def __init__(self, report: Callable[[Steps], None]) -> None:
        self._report = report

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._report(Steps(state.global_step, state.max_steps))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        found = [f"{name} {float(logs[name]):.3g}" for name in ("loss", "reward") if name in (logs or {})]
        if found:  # the last log of a run sums it up and has neither
            self._report(Steps(state.global_step, state.max_steps, ", ".join(found)))


def finished(folder: Path) -> Result | None:
    """The result of a job that was renamed into place, or nothing."""
    path = folder / RESULT
    if not path.exists():
        return None
    stored = json.loads(path.read_text(encoding="utf-8"))
    return Result(folder, stored["steps"], stored["metrics"])


def partial_folder(folder: Path) -> Path:
    """Where a job works until it is done."""
    return folder.parent / f".{folder.name}.partial"


def run_job(
    folder: Path,
    processor: ImageOnlyProcessor,
    make_trainer: Callable[[Path], Any],
    report: Callable[[Steps], None] = lambda steps: None,
) -> Result:
    """The finished job: trained from its last complete checkpoint, saved, and renamed to `folder`."""
    done = finished(folder)
    if done is not None:
        return done
    partial = partial_folder(folder)
    partial.mkdir(parents=True, exist_ok=True)
    trainer = make_trainer(partial)
    trainer.add_callback(MarkComplete())
    trainer.add_callback(ReportSteps(report))
    trainer.remove_callback(PrinterCallback)  # every step's numbers are in the result
    last = last_complete(partial)
    if last is not None:
        _load_weights(trainer.accelerator.unwrap_model(trainer.model), last)
    trainer.train(resume_from_checkpoint=None if last is None else str(last))

    final = partial / "final"
    shutil.rmtree(final, ignore_errors=True)
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    if hasattr(model, "merge_and_unload"):  # adapters are merged, so that every checkpoint opens alike
        model = model.merge_and_unload()
    model.save_pretrained(final)
    processor.save_pretrained(final)
    result = Result(folder, trainer.state.global_step, collect_metrics(trainer.state.log_history))
    (final / RESULT).write_text(result.as_json, encoding="utf-8")
    _sync(final)
    shutil.rmtree(folder, ignore_errors=True)  # a folder without a result is no finished job
    final.rename(folder)
    shutil.rmtree(partial, ignore_errors=True)
    return result


def last_complete(partial: Path) -> Path | None:
    """The newest checkpoint that was written whole; broken ones are deleted, as Trainer would trip over them."""
    whole: list[tuple[int, Path]] = []
    for path in partial.glob("checkpoint-*"):
        if (path / COMPLETE).exists():
            whole.append((int(path.name.removeprefix("checkpoint-")), path))
        else:
            shutil.rmtree(path)
    return max(whole)[1] if whole else None


def _load_weights(model: Any, checkpoint: Path) -> None:
    """Put a checkpoint's weights into the model.

    Trainer does so itself, but transformers 5 saves Qwen2.5-VL under its older names, which Trainer's plain
    `load_state_dict(strict=False)` matches with nothing: it would silently continue from the initial weights.
    """
    if hasattr(model, "merge_and_unload"):  # adapters are loaded by PEFT, under the names it saved
        return
    stored = type(model).from_pretrained(checkpoint, dtype=model.dtype)
    model.load_state_dict(stored.state_dict())


def collect_metrics(log_history: list[dict[str, Any]]) -> dict[str, list[float]]:
    """One list a metric, in step order, without anything that depends on the clock."""
    steps = [entry for entry in log_history if "loss" in entry]
    curves = {name: [float(entry[name]) for entry in steps if name in entry] for name in METRICS}
    return {name: values for name, values in curves.items() if values}


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
