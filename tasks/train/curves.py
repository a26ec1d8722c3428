"""The figures of a run as TensorBoard files, written while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


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
