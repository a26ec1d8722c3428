"""Progress for a person: live bars in a terminal, plain lines elsewhere, nothing when quiet."""

import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from flows.display import Display
from tasks.runtime.items.outcome import Tick
from tasks.runtime.steps import StepFile, Steps

FIRST_S = 0.8  # the first sign that something happens
EVERY_S = 3.0  # the longest silence after it
BEAT_S = 0.25
WINDOW_S = 30.0  # the rate is that of the last half minute,
WINDOW_ITEMS = 10  # or of the last ten results: starts and slow first items say little about the rest
KNOWN_ITEMS = 5  # fewer results than this,
KNOWN_S = 5.0  # or over a shorter time, are not enough for an estimate

# Stages whose one item is a thing with a name: "1 in = 1 kept" says little about it.
THINGS = {"train.sft": "model", "train.cold_start": "model", "train.grpo": "model", "review": "snapshot"}


def make_display(quiet: bool = False, state: Path | None = None) -> Display:
    """The display that fits where standard error goes. `state` is where workers write the steps of long items."""
    if quiet:
        return Display()
    if sys.stderr.isatty():
        return Bars(state)
    return Lines(state)


class Pace:
    """The recent rate of one stage."""

    def __init__(self, now: float | None = None) -> None:
        self.began_s = time.monotonic() if now is None else now
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, done: int, now: float | None = None) -> None:
        """Note how many items are done."""
        moment = time.monotonic() if now is None else now
        if done and (not self._seen or done > self._seen[-1][1]):
            self._seen.append((moment, done))
        while len(self._seen) > WINDOW_ITEMS and moment - self._seen[1][0] > WINDOW_S:
            self._seen.popleft()

    def rate(self) -> float | None:
        """Items a second, once enough is known."""
        if len(self._seen) < 2:
            return None
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        if last - first < KNOWN_ITEMS or last_s - first_s < KNOWN_S:
            return None
        return (last - first) / (last_s - first_s)

    def words(self, done: int, todo: int) -> str:
        """Rate and time left, or nothing while they are not known."""
        rate = self.rate()
        if rate is None:
            return ""
        return f"  {rate:,.1f}/s, {duration((todo - done) / rate)} left"


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    rounded_s = round(seconds)
    if rounded_s < 60:
        return f"{rounded_s} s"
    if rounded_s < 3600:
        return f"{rounded_s // 60} min {rounded_s % 60} s"
    return f"{rounded_s // 3600} h {rounded_s % 3600 // 60} min"


class Reporter(Display, ABC):
    """What both displays keep: the current phase, the last tick, the pace of each stage; and a thread for updates."""

    def __init__(self, state: Path | None = None) -> None:
        self.state = state
        self._phase, self._since = "checking the settings", time.monotonic()
        self._tick: Tick | None = None
        self._paces: dict[str, tuple[Pace, float]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat_until_ended, name="progress", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    @abstractmethod
    def beat(self) -> None:
        """Called a few times a second."""

    def close(self) -> None:
        self._ended.set()
        self._thread.join(5)

    def phase(self, text: str) -> None:
        self._phase, self._since, self._tick = text, time.monotonic(), None

    def tick(self, tick: Tick) -> None:
        pace, _ = self._paces.setdefault(tick.stage, (Pace(), time.time()))
        pace.add(tick.done)
        if tick.finished:
            self._paces.pop(tick.stage)  # the same step may run again, with other settings
            self.phase(f"{tick.stage} is done, preparing the next step")
            self.say(self.summary(tick))
        else:
            self._tick = tick

    def status(self) -> tuple[str, str]:
        """(what is going on, how far it is)."""
        tick = self._tick
        if tick is None:
            return self._phase, duration(time.monotonic() - self._since)
        pace, wall_s = self._paces[tick.stage]
        taken = duration(time.monotonic() - pace.began_s)
        steps = self.steps(tick.stage, wall_s)
        if steps is not None and tick.todo == 1:
            return tick.stage, f"step {steps.done} of {steps.total}{f', {steps.note}' if steps.note else ''}, {taken}"
        if tick.todo == 0:
            return tick.stage, f"nothing to do, {taken}"
        if tick.done == 0:
            return tick.stage, f"0 of {tick.todo:,}, {tick.waits_for or 'preparing the items'}, {taken}"
        return tick.stage, f"{tick.done:,} of {tick.todo:,}{pace.words(tick.done, tick.todo) or f', {taken}'}"

    def steps(self, stage: str, since: float = 0.0) -> Steps | None:
        """How far a long item of the stage is, if its worker says so."""
        return StepFile(self.state, stage).read(since) if self.state else None

    def summary(self, tick: Tick) -> str:
        """A finished stage on one line."""
        _, wall_s = self._paces.get(tick.stage, (None, 0.0))
        return summary(tick, self.steps(tick.stage, wall_s))

    def _beat_until_ended(self) -> None:
        while not self._ended.wait(BEAT_S):
            self.beat()


class Lines(Reporter):
    """A line for every stage that ends, and one every three seconds in between."""

    def __init__(self, state: Path | None = None) -> None:
        super().__init__(state)
        self._lock = threading.Lock()
        self._quiet_until = time.monotonic() + FIRST_S
        self.begin()

    def say(self, text: str) -> None:
        with self._lock:
            self._quiet_until = time.monotonic() + EVERY_S - BEAT_S
            print(text, file=sys.stderr, flush=True)

    def beat(self) -> None:
        if time.monotonic() >= self._quiet_until:
            self.say(": ".join(self.status()))


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
        super().tick(tick)
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


def summary(tick: Tick, steps: Steps | None = None) -> str:
    """A finished stage on one line."""
    if tick.total == 0:
        return f"{tick.stage:<22} nothing to do"
    if tick.todo == 0:
        return f"{tick.stage:<22} nothing to do: all {tick.total:,} done before"
    thing = THINGS.get(tick.stage)
    if thing and tick.todo == tick.kept == 1:
        made = f", {steps.total:,} steps, {steps.note}" if steps and steps.note else ""
        parts = [f"{tick.stage:<22} 1 {thing} made{made}"]
    else:
        counts = f"{tick.kept:,} kept + {tick.rejected:,} rejected + {tick.failed:,} failed"
        parts = [f"{tick.stage:<22} {tick.todo:,} in = {counts}"]
    if tick.skipped:
        parts.append(f"{tick.skipped:,} done before")
    parts.append(f"{tick.seconds:.1f} s")
    return ", ".join(parts)
