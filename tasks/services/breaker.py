"""A circuit breaker: after failures in a row requests are suspended, and one at a time probes whether to go on.

The same class serves outages and rate limits. A dead or refusing service is waited for once by all requests together:
when the pauses exceed the patience, requests fail unsent, while single ones still probe.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from tasks.services.rate_budget import LONGEST_PAUSE_S

LONGEST_LIMIT_PAUSE_S = 900.0  # without a time named: limits by the minute are over sooner
OBSERVE_EVERY_S = 10.0  # how often a process asks what the others were told


class Suspended(Exception):
    """The request was not sent: the service is out or its limit is reached, and patience is over."""

    def __init__(self, since_s: float, again_s: float, last: str) -> None:
        super().__init__(since_s, again_s, last)
        self.since_s = since_s  # how long ago requests were suspended
        self.again_s = again_s  # until the next probe
        self.last = last  # the last failure


class Breaker:
    """One for a service's host in one event loop.

    Closed, requests pass. After `after` failures in a row, or when the service names a time, it opens. Then nothing is
    sent for the time named, else for `pause_s`, doubled up to `longest_s`; then one request probes. Requests wait while
    the pauses together are no longer than `patience_s`, else `enter` raises Suspended. With `only_if_answered`, a host
    that has never answered is not waited for: its address is wrong.
    """

    def __init__(
        self,
        after: int,
        pause_s: float,
        longest_s: float,
        patience_s: float,
        only_if_answered: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._after, self._first_pause_s, self._longest_s = after, pause_s, max(pause_s, longest_s)
        self._patience_s, self._only_if_answered, self._clock = patience_s, only_if_answered, clock
        self.open = False
        self.recoveries = 0  # how often it closed again
        self._in_a_row, self._last, self._ever_answered = 0, "", False
        self._pause_s, self._at_least_s = pause_s, 1.0
        self._since_s = self._opened_at_s = self._until_s = self._observed_s = float("-inf")
        self._paused_s = 0.0  # all pauses since requests were suspended
        self._probing = False
        self._change = asyncio.Event()
        self._observing = asyncio.Lock()

    async def enter(
        self,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        observe: Callable[[], Awaitable[float]] | None = None,
    ) -> bool:
        """Pass, or wait; Suspended when patience is over. True: this request is the probe.

        `observe` asks how long other processes were told to wait still. Each passage is reported with one of the
        methods below.
        """
        if observe is not None and not self.open and (self._observing.locked() or self._is_time()):
            async with self._observing:  # none passes while the first one asks
                if not self.open and self._may_observe():
                    self.suspend(await observe())
        while self.open:
            now_s = self._clock()
            wait_s = self._until_s - now_s
            if wait_s <= 0 and not self._probing:
                self._probing = True
                return True
            if self._impatient(now_s):
                raise Suspended(now_s - self._since_s, max(0.0, wait_s), self._last)
            if wait_s <= 0:
                await self._change.wait()  # another is probing
                continue
            until_s = self._until_s
            await self._wait(wait_s, sleep, observe)
            if self.open and not self._probing and self._until_s == until_s:
                self._probing = True
                return True
        return False

    def failed(self, is_probe: bool = False, named_s: float | None = None, why: str = "") -> float | None:
        """The service is out or refuses. Returns the pause, where this begins one."""
        self._in_a_row, self._last = self._in_a_row + 1, why
        if is_probe:
            self._probing = False
        elif self.open:  # it was under way when the breaker opened
            self._until_s = max(self._until_s, self._clock() + min(named_s or 0.0, LONGEST_PAUSE_S))
            return None
        elif named_s is None and self._in_a_row < self._after:
            return None
        if named_s is not None:
            # Refused again after the very time it named, it is asked less and less often.
            pause_s = max(named_s, self._at_least_s) if is_probe else named_s
            self._at_least_s = min(2 * self._at_least_s, self._first_pause_s)
            return self._open(pause_s)
        if is_probe:
            self._pause_s = min(2 * self._pause_s, self._longest_s)
        return self._open(self._pause_s)

    def answered(self, sent_at_s: float, is_probe: bool = False) -> bool:
        """The service answered a request of that moment. Returns whether that closed the breaker."""
        self._ever_answered = True
        if self.open and not is_probe and sent_at_s < self._opened_at_s:
            return False  # it was under way when the breaker opened
        was_open, was_probing, self.open = self.open, self._probing, False
        self.recoveries += was_open
        self._in_a_row, self._paused_s, self._probing = 0, 0.0, False
        self._pause_s, self._at_least_s = self._first_pause_s, 1.0
        if was_open or was_probing:
            self._changed()
        return was_open

    def abandoned(self) -> None:
        """The probe ended without a result (it was cancelled): another may probe."""
        if self._probing:
            self._probing = False
            self._changed()

    def suspend(self, seconds: float) -> None:
        """Other processes were told to wait: nothing is sent for this time."""
        if seconds > 0 and not self.open:
            self._open(seconds)

    def _impatient(self, now_s: float) -> bool:
        patience_s = self._patience_s if self._ever_answered or not self._only_if_answered else 0.0
        return self._paused_s > patience_s or now_s - self._since_s > patience_s

    async def _wait(
        self, seconds: float, sleep: Callable[[float], Awaitable[None]], observe: Callable[[], Awaitable[float]] | None
    ) -> None:
        """Sleep, or return early when another process has found that the limit is over."""
        while seconds > 0:
            step_s = seconds if observe is None else min(seconds, OBSERVE_EVERY_S)
            await sleep(step_s)
            seconds -= step_s
            if observe is not None and seconds > 0 and self._may_observe() and await observe() <= 0:
                return

    def _may_observe(self) -> bool:
        # Once every few seconds, however many wait.
        if not self._is_time():
            return False
        self._observed_s = self._clock()
        return True

    def _is_time(self) -> bool:
        return self._clock() >= self._observed_s + OBSERVE_EVERY_S

    def _open(self, seconds: float) -> float:
        seconds = min(seconds, LONGEST_PAUSE_S)
        self._opened_at_s = self._clock()
        if not self.open:
            self._since_s = self._opened_at_s
        self.open, self._until_s = True, self._opened_at_s + seconds
        self._paused_s += seconds
        self._changed()
        return seconds

    def _changed(self) -> None:
        self._change.set()
        self._change = asyncio.Event()
