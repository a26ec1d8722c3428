"""Reports the pauses that rate limits impose: while a stage runs, and their total afterwards."""

import logging
import time
from collections.abc import Callable, Mapping

from tasks.services.rate_budget import Paused, RateBudget

LOOK_EVERY_S = 5.0

logger = logging.getLogger("geofix.services")


class Pauses:
    """The pauses of a stage's workers, as recorded in the rate budget they share."""

    def __init__(self, rate_budget: RateBudget, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate_budget, self._clock = rate_budget, clock
        self._before = self._known = rate_budget.pauses()
        self._next_s = clock() + LOOK_EVERY_S

    def look(self) -> None:
        """Log new pauses; reads the rate budget every few seconds, however often it is called."""
        if self._clock() < self._next_s:
            return
        self._next_s = self._clock() + LOOK_EVERY_S
        now = self._rate_budget.pauses()
        for name, paused in now.items():
            before = self._known.get(name, Paused())
            left_s = paused.until_s - time.time()
            if paused.times > before.times or paused.until_s > before.until_s + 1.0:
                service = name.split()[0]
                ahead = f"no requests to it for {max(1.0, left_s):.0f} s" if left_s > 0 else "requests to it paused"
                logger.warning(
                    "%s says that its limit is reached: %s, then one probes "
                    "(services.%s.limit_pause_s, limit_patience_s)",
                    service,
                    ahead,
                    service,
                )
        self._known = now

    def taken_s(self) -> Mapping[str, float]:
        """By service, the seconds of pauses since this was made."""
        taken: dict[str, float] = {}
        for name, paused in self._rate_budget.pauses().items():
            ahead_s = max(0.0, paused.until_s - time.time())
            seconds = paused.total_s - ahead_s - self._before.get(name, Paused()).total_s
            if seconds > 0:
                service = name.split()[0]
                taken[service] = taken.get(service, 0.0) + seconds
        return taken
