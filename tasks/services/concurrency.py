"""How many requests are at a host at once: as many as make it answer more a second, half when it says too much."""

import asyncio
import heapq
import itertools
import statistics
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

START = 16
FEWEST = 4  # however slow the host: that it is cannot be our doing any more
SLOWER = 2.0  # the latency that still counts as holding, against the best known
TOLERATED_S = 0.1  # below this, differences are our own scheduling
FEWER = 0.7  # of the places, for a try
AS_MANY = 0.8  # of the answers a second: what fewer places must still bring


# When a task waited here, or passed, for the first time; those it starts later inherit it. Who began first goes first:
# what is under way ends before the next begins, and tasks of many requests do not go through them in step.
_began: ContextVar[int] = ContextVar("began")
_numbers = itertools.count()


@dataclass
class _Try:
    """Fewer places for a while, and what there was before."""

    limit: float
    per_s: float
    settled: bool = False  # answers to what was sent before are out of the way


class ConcurrencyLimiter:
    """Additive increase, multiplicative decrease, for one host in one event loop.

    While latency holds it grows. When answers take much longer, either requests pile up before the host, then fewer
    of them bring as many answers, or the host has become slower by itself, then they bring fewer. Which it is shows
    by trying. It learns only while it is full: a limit that is not reached says nothing about the host.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self.limit = float(min(START, most))
        self.inside = 0
        self._queue: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap
        self._probing = True  # until the first cut the limit doubles in a round trip, afterwards it grows by one
        self._cut_at_s = float("-inf")
        self._recent_s = 0.0  # moving average
        # Mean of the quickest round: of single answers, one is always quick by chance. It is forgotten when the host
        # is found to be slower by itself.
        self._best_s = float("inf")
        self._round, self._round_size = list[float](), int(self.limit)
        self._round_since_s: float | None = None
        self._slow = False  # as the last round was
        self._try: _Try | None = None

    async def enter(self) -> None:
        """Wait for a place; `leave` gives it back."""
        if (began := _began.get(None)) is None:
            _began.set(began := next(_numbers))
        if self.inside < int(self.limit) and not self._queue:
            self.inside += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (began, next(_numbers), turn))
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
        """An answer came, of any status, `latency_s` after its request."""
        self._recent_s = 0.9 * self._recent_s + 0.1 * latency_s if self._recent_s else latency_s
        if self.inside < int(self.limit):
            self._forget_round()
            return
        self._round.append(latency_s)
        if len(self._round) >= self._round_size:
            self._end_round()
        if self._try is None and self._recent_s <= self._slow_s() < float("inf"):
            self.limit = min(float(self._most), self.limit + (1.0 if self._probing else 1.0 / self.limit))
            self._admit()

    def too_much(self, sent_at_s: float) -> None:
        """A refusal, or no answer in time, to a request of that moment: one cut for all that were under way."""
        if sent_at_s < self._cut_at_s:
            return
        self._cut_at_s, self._probing = self._clock(), False
        self.limit = max(1.0, self.limit / 2)
        self._forget_round()

    def _end_round(self) -> None:
        now_s, since_s = self._clock(), self._round_since_s
        count, usual_s = len(self._round), statistics.fmean(self._round)
        self._round, self._round_since_s = [], now_s
        self._best_s = min(self._best_s, usual_s)
        self._round_size = 2 * int(self.limit)
        if since_s is None or now_s <= since_s:
            return
        per_s, tried = count / (now_s - since_s), self._try
        if tried is not None and not tried.settled:
            tried.settled = True
            return
        self._try = None
        if tried is not None and per_s < AS_MANY * tried.per_s:
            self._best_s, self.limit = usual_s, tried.limit
            self._admit()
        elif usual_s <= self._slow_s():
            self._slow = False
        elif not self._slow:
            self._slow = True  # from the next round on: this one may have begun while it was quick
        else:
            fewer = max(float(min(FEWEST, self._most)), FEWER * self.limit)
            if fewer < self.limit:
                self._try, self._probing = _Try(self.limit, per_s), False
                self.limit = fewer
            else:
                self._best_s = usual_s

    def _slow_s(self) -> float:
        return SLOWER * self._best_s + TOLERATED_S

    def _forget_round(self) -> None:
        self._round, self._round_size = [], 2 * int(self.limit)
        self._round_since_s, self._slow, self._try = None, False, None

    def _admit(self) -> None:
        while self._queue and self.inside < int(self.limit):
            turn = heapq.heappop(self._queue)[2]
            if not turn.done():
                turn.set_result(None)
                self.inside += 1
