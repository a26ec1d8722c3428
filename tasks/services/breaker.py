"""A circuit breaker: after outages in a row, one request at a time finds out whether the service is back."""

import asyncio
import time
from collections.abc import Callable
from typing import Literal

State = Literal["closed", "open", "probing"]


class Out(Exception):
    """The service is held to be out, and was not asked."""

    def __init__(self, since_s: float, last: str) -> None:
        super().__init__(since_s, last)
        self.since_s = since_s  # how long ago the first of its outages was
        self.last = last  # what the last one was


class Breaker:
    """One for a service's host in one event loop.

    Closed, requests pass. After `after` outages in a row it opens: requests wait, and each time `pause_s` (doubled up
    to `longest_pause_s`) is over, one of them is sent. If it is answered all pass again. A request that has waited
    for `patience_s` fails without being sent; at a host that has never answered it fails at once, for then it is the
    address that is wrong, and nobody wants to wait for that.
    """

    def __init__(
        self,
        after: int,
        pause_s: float,
        longest_pause_s: float,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._after, self._first_pause_s, self._longest_pause_s = after, pause_s, max(pause_s, longest_pause_s)
        self._patience_s, self._clock = patience_s, clock
        self.state: State = "closed"
        self._failures, self._failing_since_s, self._last = 0, 0.0, ""
        self._pause_s = pause_s
        self._ask_at_s = 0.0
        self._ever_answered = False
        self._change = asyncio.Event()

    async def enter(self) -> bool:
        """Pass, or wait until it may be tried; Out when patience is over. True: this request is to find out.

        Each passage is reported with one of the methods below.
        """
        give_up_s = self._clock() + (self._patience_s if self._ever_answered else 0.0)
        while self.state != "closed":
            now_s = self._clock()
            if self.state == "open" and now_s >= self._ask_at_s:
                self.state = "probing"
                return True
            if now_s >= give_up_s:
                raise Out(now_s - self._failing_since_s, self._last)
            until_s = give_up_s if self.state == "probing" else min(give_up_s, self._ask_at_s)
            try:
                async with asyncio.timeout(max(0.001, until_s - now_s)):
                    await self._change.wait()
            except TimeoutError:
                continue
        return False

    def answered(self) -> None:
        """The service answered: it is there, whatever it said."""
        self._failures, self._pause_s, self._ever_answered = 0, self._first_pause_s, True
        self._become("closed")

    def failed(self, is_probe: bool = False, why: str = "") -> None:
        """Nothing came, or word of an outage."""
        if not self._failures:
            self._failing_since_s = self._clock()
        self._failures, self._last = self._failures + 1, why
        if is_probe:
            self._pause_s = min(self._longest_pause_s, self._pause_s * 2)
        elif self.state != "closed" or self._failures < self._after:
            return  # one of those that were under way when it opened
        self._ask_at_s = self._clock() + self._pause_s
        self._become("open")

    def abandoned(self) -> None:
        """The request that was to find out ended without word (it was cancelled): another may try."""
        if self.state == "probing":
            self._become("open")

    def _become(self, state: State) -> None:
        self.state = state
        self._change.set()
        self._change = asyncio.Event()
