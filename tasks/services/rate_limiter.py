"""RateLimiter as the requests of one process take them: leased in batches for all that wait, never the bottleneck."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

from schemas.settings.endpoint import Allowance
from tasks.services.rate_budget import DAY_S, MOST_AT_ONCE, PROCESS_BUDGET, Lease, RateBudget, usable_s

# Asking the rate_budget may wait for a file or another node: its own thread, which decoding pictures never fills.
asking = ThreadPoolExecutor(1, "budget")


class UsedUp(Exception):
    """The day's budget is used up until `renews_at`."""

    def __init__(self, renews_at: datetime) -> None:
        super().__init__(renews_at)
        self.renews_at = renews_at


@dataclass(frozen=True)
class _Permit:
    """By our clock: when it may be used, and until when. And the day it counts for."""

    moment_s: float
    good_until_s: float
    day: int


class RateLimiter:
    """One budget's permits in this process, for every thread and event loop of it."""

    def __init__(
        self, rate_budget: RateBudget, bucket: str, allowance: Allowance, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate_budget, self._bucket, self._allowance, self._clock = rate_budget, bucket, allowance, clock
        self._lock = threading.Lock()
        self._held: deque[_Permit] = deque()
        self._waiting = 0
        self._flight: Future[Lease] | None = None
        self._used_up: tuple[float, datetime] | None = None  # until when by our clock, and by the calendar

    async def take(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Wait for a permit and its moment; UsedUp if today has none left."""
        with self._lock:
            self._waiting += 1
        try:
            while True:
                moment_s = self._pop()
                if moment_s is not None:
                    break
                # Shielded: one that gives up must not take the lease from the others.
                lease = await asyncio.shield(asyncio.wrap_future(self._ask()))
                if lease.count == 0 and not lease.used_up:
                    await sleep(lease.again_s)
        finally:
            with self._lock:
                self._waiting -= 1
        if (wait_s := moment_s - self._clock()) > 0:
            await sleep(wait_s)

    def _pop(self) -> float | None:
        stale: dict[int, int] = {}
        found = None
        with self._lock:
            now_s = self._clock()
            while self._held and found is None:
                permit = self._held.popleft()
                if now_s <= permit.good_until_s:
                    found = permit.moment_s
                else:
                    stale[permit.day] = stale.get(permit.day, 0) + 1
            if found is None and self._used_up is not None:
                if now_s < self._used_up[0]:
                    raise UsedUp(self._used_up[1])
                self._used_up = None
        if self._allowance.per_day is not None:
            for day, count in stale.items():
                asking.submit(self._rate_budget.give_back, self._bucket, day, count)
        return found

    def _ask(self) -> "Future[Lease]":
        """The lease on its way for all that wait; one at a time."""
        with self._lock:
            if self._flight is None:
                self._flight = asking.submit(self._lease)
            return self._flight

    def _lease(self) -> Lease:
        try:
            with self._lock:
                want = max(1, min(self._waiting, MOST_AT_ONCE))
                asked_s = self._clock()
            lease = self._rate_budget.lease(self._bucket, self._allowance, want)
            with self._lock:
                now_s = self._clock()
                self._held.extend(self._permits(lease, asked_s, now_s))
                if lease.used_up:
                    renews_at = datetime.fromtimestamp((lease.day + 1) * DAY_S, UTC)
                    self._used_up = (now_s + lease.again_s, renews_at)
            return lease
        finally:
            with self._lock:
                self._flight = None

    def _permits(self, lease: Lease, asked_s: float, now_s: float) -> Iterator[_Permit]:
        # The budget's moments lie between those counted from the question and those counted from the answer. None is
        # used before the later or, by more than is allowed, after the earlier: an answer that took long is worth less.
        for number in range(lease.count):
            after_s = lease.wait_s + number * lease.gap_s
            good_until_s = asked_s + after_s + usable_s(self._allowance)
            # The first one always, else answers that are always slow would bring nothing at all.
            yield _Permit(now_s + after_s, max(good_until_s, now_s + 0.1) if number == 0 else good_until_s, lease.day)


_known: dict[tuple[int, str, Allowance], tuple[RateBudget, RateLimiter]] = {}
_known_lock = threading.Lock()


def rate_limiter_of(rate_budget: RateBudget | None, bucket: str, allowance: Allowance | None) -> RateLimiter | None:
    """The process's permits of one budget, or None where there is nothing to keep to."""
    if allowance is None or allowance.is_open:
        return None
    rate_budget = rate_budget if rate_budget is not None else PROCESS_BUDGET
    with _known_lock:
        # The rate_budget is kept beside them: another one must not come to have its id.
        return _known.setdefault(
            (id(rate_budget), bucket, allowance), (rate_budget, RateLimiter(rate_budget, bucket, allowance))
        )[1]
