"""How far one long item is, such as a training run: written by its worker, read by the progress display.

The file is local state of the machine that runs the command. On a cluster the worker writes on its own machine, and the
display shows the elapsed time alone.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

# A file is stamped by the kernel's coarse clock, which stands still for up to 10 ms: a file written just after the
# moment `since` may bear a time before it.
COARSE_CLOCK_S = 0.05


@dataclass(frozen=True)
class Steps:
    """Steps done of those planned, and a figure worth showing beside them."""

    done: int
    total: int
    note: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)  # of the last step, such as loss and tokens_per_s


class StepFile:
    """The steps of a stage's current item."""

    def __init__(self, state: Path, stage: str) -> None:
        self.path = state / "progress" / f"{stage}.json"

    def write(self, steps: Steps) -> None:
        """Replace what was written before. Progress that cannot be written must not end the work."""
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}")
            fresh.write_text(json.dumps(asdict(steps)))
            fresh.replace(self.path)

    def read(self, since: float = 0.0) -> Steps | None:
        """What was written after the moment `since` (seconds since 1970), if anything was."""
        try:
            if self.path.stat().st_mtime < since - COARSE_CLOCK_S:
                return None
            return Steps(**json.loads(self.path.read_text()))
        except (OSError, ValueError, TypeError):
            return None
