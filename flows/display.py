"""What a run reports while it goes on: a command line prints it, a deployment logs it."""

import logging
import time
from contextvars import ContextVar

from tasks.runtime.items.outcome import Tick

EVERY_S = 60.0  # between two lines about a step under way

logger = logging.getLogger("geofix.flows")


class Display:
    """Receives how far stages are, what is being prepared, and messages for the user. This one shows nothing."""

    def tick(self, tick: Tick) -> None:
        """Take in how far a step is."""

    def phase(self, text: str) -> None:
        """What goes on until the next phase or tick."""

    def say(self, text: str) -> None:
        """A line for the user."""

    def confirm(self, question: str) -> bool:
        """The user's answer; False where there is no terminal to ask in."""
        return False

    def close(self) -> None:
        """The run is over."""


class Logged(Display):
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
