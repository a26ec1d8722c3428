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
        if tick.finished:
            self._last.pop(tick.stage, None)
            counts = f"{tick.kept:,} kept + {tick.rejected:,} rejected + {tick.failed:,} failed"
            self.say(f"{tick.stage}: {tick.todo:,} in = {counts}; {tick.skipped:,} done before, {tick.seconds:.1f} s")
        elif tick.todo and now - self._last.setdefault(tick.stage, now) >= EVERY_S:
            self._last[tick.stage] = now
            self.say(f"{tick.stage}: {tick.done:,} of {tick.todo:,}")

    def phase(self, text: str) -> None:
        self.say(text)

    def say(self, text: str) -> None:
        logger.info("%s", text)

    def close(self) -> None:
        pass
