"""What is done while a service says that its limit is reached: all wait, one asks, and nobody waits for ever."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from tasks.services.rate_budget import LONGEST_PAUSE_S

LONGEST_DOUBLED_S = 900.0  # a limit by the minute is over sooner
OBSERVE_EVERY_S = 10.0  # how often a process asks what the others were told


class OverLimit(Exception):
    """The service's limit is reached and waiting for its end takes longer than is waited; it was not asked."""

    def __init__(self, again_s: float, since_s: float) -> None:
        super().__init__(again_s, since_s)
        self.again_s = again_s  # until somebody asks again
        self.since_s = since_s  # how long ago it was first refused


class Refusals:
    """One for a service's host in one event loop.

    A single refusal is an error like others: it is tried again, and others go on. After `after` of them in a row, or
    when the service names a time, the limit is held to be reached. Then nothing is sent for the time named, else for
    `pause_s`, doubled each time; then one request finds out. Pauses that together are longer than `patience_s` are not
    waited for: requests fail unsent, and one at a time still finds out.
    """

    def __init__(
        self, after: int, pause_s: float, patience_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._after, self._first_pause_s, self._patience_s, self._clock = after, pause_s, patience_s, clock
        self.closed = False
        self.openings = 0  # how often a limit was found to be over
        self._in_a_row = 0
        self._pause_s, self._at_least_s = pause_s, 1.0
        self._since_s = self._closed_at_s = self._until_s = float("-inf")
        self._heeded_s = float("-inf")
        self._paused_s = 0.0  # all pauses since the first refusal
        self._probing = False
        self._change = asyncio.Event()

    async def enter(
        self,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        observe: Callable[[], Awaitable[float]] | None = None,
    ) -> bool:
        """Pass, or wait; OverLimit when that takes too long. True: this request is to find out.

        `observe` asks how long others were told to wait still. Each passage is reported with one of the methods below.
        """
        if observe is not None and not self.closed and self._is_to_observe():
            self.hold(await observe())
        while self.closed:
            now_s = self._clock()
            wait_s = self._until_s - now_s
            if wait_s <= 0 and not self._probing:
                self._probing = True
                return True
            if self._paused_s > self._patience_s:
                raise OverLimit(max(0.0, wait_s), now_s - self._since_s)
            if wait_s <= 0:
                await self._change.wait()  # another is finding out
                continue
            until_s = self._until_s
            await self._sleep(wait_s, sleep, observe)
            if self.closed and not self._probing and self._until_s == until_s:
                self._probing = True
                return True
        return False

    def refused(self, is_probe: bool = False, named_s: float | None = None) -> float | None:
        """The service says that its limit is reached. Returns the pause, where this begins one."""
        if self._in_a_row == 0 and not self.closed:
            self._since_s = self._clock()
        self._in_a_row += 1
        if is_probe:
            self._probing = False
        elif self.closed:  # it was under way when the limit was reached
            self._until_s = max(self._until_s, self._clock() + min(named_s or 0.0, LONGEST_PAUSE_S))
            return None
        elif named_s is None and self._in_a_row < self._after:
            return None
        if named_s is not None:
            # Refused again after the very time it named, it is asked less often by and by.
            pause_s = max(named_s, self._at_least_s) if is_probe else named_s
            self._at_least_s = min(2 * self._at_least_s, self._first_pause_s)
            return self._close(pause_s)
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, max(self._first_pause_s, LONGEST_DOUBLED_S))
        return self._close(pause_s)

    def answered(self, sent_at_s: float, is_probe: bool = False) -> bool:
        """The service answered a request of that moment. Returns whether that ended a pause."""
        if self.closed and not is_probe and sent_at_s < self._closed_at_s:
            return False  # it was under way when the limit was reached
        was_closed, self.closed = self.closed, False
        self.openings += was_closed
        self._in_a_row, self._paused_s, self._probing = 0, 0.0, False
        self._pause_s, self._at_least_s = self._first_pause_s, 1.0
        self._changed()
        return was_closed

    def abandoned(self) -> None:
        """The request that was to find out ended without word on the limit: another may try."""
        if self._probing:
            self._probing = False
            self._changed()

    async def _sleep(
        self,
        seconds: float,
        sleep: Callable[[float], Awaitable[None]],
        observe: Callable[[], Awaitable[float]] | None,
    ) -> None:
        """Sleep so long, or until another process has found that the limit is over."""
        while seconds > 0:
            step_s = seconds if observe is None else min(seconds, OBSERVE_EVERY_S)
            await sleep(step_s)
            seconds -= step_s
            if observe is not None and seconds > 0 and self._is_to_observe() and await observe() <= 0:
                return

    def _is_to_observe(self) -> bool:
        # Once every few seconds, however many wait.
        if self._clock() < self._heeded_s + OBSERVE_EVERY_S:
            return False
        self._heeded_s = self._clock()
        return True

    def hold(self, seconds: float) -> None:
        """Others were told that the limit is reached: nothing is sent for so long."""
        if seconds <= 0 or self.closed:
            return  # whoever waits already will find out
        self._since_s = self._clock()
        self._close(seconds)

    def _close(self, seconds: float) -> float:
        seconds = min(seconds, LONGEST_PAUSE_S)
        self.closed, self._closed_at_s = True, self._clock()
        self._until_s = self._closed_at_s + seconds
        self._paused_s += seconds
        self._changed()
        return seconds

    def _changed(self) -> None:
        self._change.set()
        self._change = asyncio.Event()
