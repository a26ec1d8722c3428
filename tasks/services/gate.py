"""How many requests are at a host at once: more while it stays quick, half as many when it says too much."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

START = 16
SLOWER = 2.0  # the latency that still counts as holding, against the best seen of late
TOLERATED_S = 0.1  # below this, differences are our own scheduling
WINDOW = 200  # answers whose best latency is remembered, twice


class Gate:
    """Additive increase, multiplicative decrease, for one host in one event loop.

    It grows only while it is full: a limit nobody reaches says nothing about the host.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self.limit = float(min(START, most))
        self.inside = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._probing = True  # until the first refusal the limit doubles in a round trip, afterwards it grows by one
        self._cut_at_s = float("-inf")
        self._recent_s = 0.0  # moving average
        self._best_s = self._best_before_s = float("inf")
        self._seen = 0

    async def enter(self) -> None:
        """Wait for a place; `leave` gives it back."""
        if self.inside < int(self.limit) and not self._queue:
            self.inside += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()  # the place was given in the same moment
            raise

    def leave(self) -> None:
        """Give a place back."""
        self.inside -= 1
        self._admit()

    def answered(self, latency_s: float) -> None:
        """An answer came, however it reads, so long after its request."""
        self._recent_s = latency_s if self._seen == 0 else 0.9 * self._recent_s + 0.1 * latency_s
        self._best_s = min(self._best_s, latency_s)
        self._seen += 1
        if self._seen % WINDOW == 0:
            # What was best long ago may never come back: a host that has become slower is a new normal.
            self._best_before_s, self._best_s = self._best_s, latency_s
        holds = self._recent_s <= SLOWER * min(self._best_s, self._best_before_s) + TOLERATED_S
        if holds and self.inside >= int(self.limit):
            self.limit = min(float(self._most), self.limit + (1.0 if self._probing else 1.0 / self.limit))
            self._admit()

    def too_much(self, sent_at_s: float) -> None:
        """A refusal, or no answer in time, to a request of that moment: one cut for all that were under way."""
        if sent_at_s < self._cut_at_s:
            return
        self._cut_at_s, self._probing = self._clock(), False
        self.limit = max(1.0, self.limit / 2)

    def _admit(self) -> None:
        while self._queue and self.inside < int(self.limit):
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                self.inside += 1
