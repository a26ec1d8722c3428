"""What a finished training job leaves in its folder; read without torch."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KEPT = 2  # a newer checkpoint that turns out unreadable must not be the only one
PREFIX = "checkpoint-"
WHOLE = "progress.json"  # a checkpoint's last file: one that has it is whole
BEST = "best"  # folder of the weights with the best validation, where they are not the last ones
RESULT = "result.json"
CLOCK = ("seconds", "rollout_seconds", "tokens_per_s", "mfu")  # differ between two equal runs


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


def finished_result(folder: Path) -> Result | None:
    """The result of a job that was renamed into place, or nothing."""
    path = folder / RESULT
    if not path.exists():
        return None
    return Result(folder, **json.loads(path.read_text(encoding="utf-8")))


def partial_folder(folder: Path) -> Path:
    """Where a job works until it is done."""
    return folder.parent / f".{folder.name}.partial"
