"""Progress as log lines: the display of runs without a terminal, such as a deployment's."""

import logging
import time

from tasks.runtime.outcome import Tick

EVERY_S = 60.0  # between two lines about a stage under way

logger = logging.getLogger("geofix.flows")


class Logged:
    """Every line goes to the logger `geofix.flows`."""

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

    def confirm(self, question: str) -> bool:
        return False

    def close(self) -> None:
        pass
