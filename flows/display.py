"""Progress for a person: live bars in a terminal, plain lines elsewhere, nothing when quiet."""

import sys
import time
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from tasks.runtime.outcome import Tick

PLAIN_EVERY_S = 10.0


class Display(Protocol):
    """Told how far stages are, and what else is worth a line."""

    def tick(self, tick: Tick) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self) -> None: ...


def make_display(quiet: bool = False) -> Display:
    """The display that fits where standard error goes."""
    if quiet:
        return Silent()
    return Bars() if sys.stderr.isatty() else Lines()


class Silent:
    """Says nothing."""

    def tick(self, tick: Tick) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class Lines:
    """A line when a stage starts work, every ten seconds, and when it ends."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def tick(self, tick: Tick) -> None:
        now = time.monotonic()
        if tick.finished:
            self.say(summary(tick))
        elif tick.todo and now - self._last.setdefault(tick.stage, now) >= PLAIN_EVERY_S:
            self._last[tick.stage] = now
            self.say(f"{tick.stage}: {tick.done} of {tick.todo}{_speed(tick)}")

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class Bars:
    """One bar a stage, with rate and time left."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description:<20}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[counts]}"),
            console=self._console,
            transient=True,
        )
        self._progress.start()
        self._tasks: dict[str, int] = {}

    def tick(self, tick: Tick) -> None:
        if tick.finished:
            if tick.stage in self._tasks:
                self._progress.remove_task(self._tasks.pop(tick.stage))  # type: ignore[arg-type]
            self.say(summary(tick))
            return
        if tick.stage not in self._tasks:
            self._tasks[tick.stage] = self._progress.add_task(tick.stage, total=max(tick.todo, 1), counts="")
        counts = f"{tick.done}/{tick.todo}{_speed(tick)}"
        self._progress.update(self._tasks[tick.stage], completed=tick.done, counts=counts)  # type: ignore[arg-type]

    def say(self, text: str) -> None:
        self._console.print(text, markup=False)

    def close(self) -> None:
        self._progress.stop()


def summary(tick: Tick) -> str:
    """A finished stage on one line."""
    if tick.total == 0:
        return f"{tick.stage:<22} nothing to do"
    if tick.todo == 0:
        return f"{tick.stage:<22} nothing to do: all {tick.total} done before"
    parts = [f"{tick.stage:<22} {tick.todo} in = {tick.kept} kept + {tick.rejected} rejected + {tick.failed} failed"]
    if tick.skipped:
        parts.append(f"{tick.skipped} done before")
    parts.append(f"{tick.seconds:.1f} s")
    return ", ".join(parts)


def _speed(tick: Tick) -> str:
    if not tick.done or tick.eta_s is None:
        return ""
    left = round(tick.eta_s)
    eta = f"{left // 60} min {left % 60} s" if left >= 60 else f"{left} s"
    return f"  {tick.rate:,.1f}/s, {eta} left"
