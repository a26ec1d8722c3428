"""Progress in a terminal: a bar for the stage at work, lines for those that ended."""

import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from flows.cli.progress import Reporter
from tasks.runtime.outcome import Tick


class Bars(Reporter):
    """One live line: what goes on, a bar, how far it is."""

    def __init__(self, state: Path | None = None, console: Console | None = None) -> None:
        super().__init__(state)
        self._console = console or Console(stderr=True, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[figures]}"),
            console=self._console,
            transient=True,
        )
        self._line: Any = self._progress.add_task(self._phase, total=None, figures="")
        self._progress.start()
        self.begin()

    def tick(self, tick: Tick) -> None:
        self.note(tick)
        if tick.finished:
            self.say(self.summary(tick))
        self.beat()

    def phase(self, text: str) -> None:
        super().phase(text)
        self.beat()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False)

    def confirm(self, question: str) -> bool:
        if not sys.stdin.isatty():
            return False
        self._progress.stop()  # a live line would overwrite what is typed
        try:
            self._console.print(f"{question}\nDo them again? [y/N] ", markup=False, end="", soft_wrap=True)
            return sys.stdin.readline().strip().lower() in ("y", "yes")
        finally:
            self._progress.start()

    def beat(self) -> None:
        title, figures = self.status()
        tick = self._tick
        done, total = (tick.done, max(tick.todo, 1)) if tick else (0, None)
        if tick and tick.todo == 1:
            _, wall_s = self._paces[tick.stage]
            steps = self.steps(tick.stage, wall_s)
            done, total = (steps.done, max(steps.total, 1)) if steps else (0, None)
        line = self._progress.tasks[0]
        line.total = total  # `update` takes None for "as before"; here it means "not known"
        line.finished_time = None  # the stage before may have been complete: the spinner goes on
        self._progress.update(self._line, description=title, figures=figures, completed=done)

    def close(self) -> None:
        super().close()
        self._progress.stop()
