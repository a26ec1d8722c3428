"""Progress for a person: live bars in a terminal, plain lines elsewhere, nothing when quiet."""

import sys
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path

from flows.cli.pace import Pace, duration
from flows.display import Display, Silent
from tasks.runtime.outcome import Tick
from tasks.runtime.steps import StepFile, Steps

FIRST_S = 0.8  # the first sign that something happens
EVERY_S = 3.0  # the longest silence after it
BEAT_S = 0.25

# Stages whose one item is a thing with a name: "1 in = 1 kept" says little about it.
THINGS = {"train.sft": "model", "train.cold_start": "model", "train.grpo": "model", "review": "snapshot"}


def make_display(quiet: bool = False, state: Path | None = None) -> Display:
    """The display that fits where standard error goes. `state` is where workers write the steps of long items."""
    if quiet:
        return Silent()
    if sys.stderr.isatty():
        from flows.cli.bars import Bars

        return Bars(state)
    return Lines(state)


class Reporter(ABC):
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

    def confirm(self, question: str) -> bool:
        """The user's answer; no where there is no terminal to ask in."""
        return False

    def close(self) -> None:
        self._ended.set()
        self._thread.join(5)

    def phase(self, text: str) -> None:
        self._phase, self._since, self._tick = text, time.monotonic(), None

    def note(self, tick: Tick) -> None:
        """Take in a tick."""
        pace, _ = self._paces.setdefault(tick.stage, (Pace(), time.time()))
        pace.add(tick.done)
        if tick.finished:
            self.phase(f"{tick.stage} is done, preparing the next step")
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
            return tick.stage, f"0 of {tick.todo:,}, waiting for the first result, {taken}"
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

    def tick(self, tick: Tick) -> None:
        self.note(tick)
        if tick.finished:
            self.say(self.summary(tick))

    def say(self, text: str) -> None:
        with self._lock:
            self._quiet_until = time.monotonic() + EVERY_S - BEAT_S
            print(text, file=sys.stderr, flush=True)

    def beat(self) -> None:
        if time.monotonic() >= self._quiet_until:
            self.say(": ".join(self.status()))


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
