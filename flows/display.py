"""What a run reports while it goes on: a command line prints it, a deployment logs it."""

import logging
import time
from contextvars import ContextVar
from typing import Protocol

from tasks.runtime.outcome import Tick

EVERY_S = 60.0  # between two lines about a step under way

logger = logging.getLogger("geofix.flows")


class Display(Protocol):
    """Receives how far stages are, what is being prepared, and messages for the user."""

    def tick(self, tick: Tick) -> None: ...
    def phase(self, text: str) -> None: ...  # what goes on until the next phase or tick
    def say(self, text: str) -> None: ...
    def confirm(self, question: str) -> bool: ...  # false where no one can answer
    def close(self) -> None: ...


class Silent:
    """Prints nothing."""

    def tick(self, tick: Tick) -> None:
        pass

    def phase(self, text: str) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def confirm(self, question: str) -> bool:
        return False

    def close(self) -> None:
        pass


class Logged(Silent):
    """The display of runs without a terminal, such as a deployment's: lines of the logger `geofix.flows`."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def tick(self, tick: Tick) -> None:
        now = time.monotonic()
        if tick.todo and not tick.finished and now - self._last.setdefault(tick.stage, now) >= EVERY_S:
            self._last[tick.stage] = now
            self.say(f"{tick.stage}: {tick.done:,} of {tick.todo:,}")

    def phase(self, text: str) -> None:
        self.say(text)

    def say(self, text: str) -> None:
        logger.info("%s", text)


# A display cannot be a flow's parameter: Prefect stores those.
display: ContextVar[Display] = ContextVar("display", default=Logged())  # noqa: B039 - holds only times
