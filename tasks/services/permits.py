"""Permits as the requests of one process take them: leased in batches for all that wait, never the bottleneck."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime

from schemas.settings.allowance import Allowance
from tasks.services.limit import DAY_S, MOST_AT_ONCE, PROCESS_TILL, Lease, Till, usable_s

# Asking the till may wait for a file or another node: its own thread, which decoding pictures never fills.
_asking = ThreadPoolExecutor(1, "budget")


class UsedUp(Exception):
    """The day's budget is used up until `renews_at`."""

    def __init__(self, renews_at: datetime) -> None:
        super().__init__(renews_at)
        self.renews_at = renews_at


class Permits:
    """One budget's permits in this process, for every thread and event loop of it."""

    def __init__(
        self, till: Till, bucket: str, allowance: Allowance, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._till, self._bucket, self._allowance, self._clock = till, bucket, allowance, clock
        self._lock = threading.Lock()
        self._held: deque[tuple[float, int]] = deque()  # moment by our clock, and the day it counts for
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
                moment_s, day = self._held.popleft()
                if now_s <= moment_s + usable_s(self._allowance):
                    found = moment_s
                else:
                    stale[day] = stale.get(day, 0) + 1
            if found is None and self._used_up is not None:
                if now_s < self._used_up[0]:
                    raise UsedUp(self._used_up[1])
                self._used_up = None
        if self._allowance.per_day is not None:
            for day, count in stale.items():
                _asking.submit(self._till.give_back, self._bucket, day, count)
        return found

    def _ask(self) -> "Future[Lease]":
        """The lease on its way for all that wait; one at a time."""
        with self._lock:
            if self._flight is None:
                self._flight = _asking.submit(self._lease)
            return self._flight

    def _lease(self) -> Lease:
        try:
            with self._lock:
                want = max(1, min(self._waiting, MOST_AT_ONCE))
            lease = self._till.lease(self._bucket, self._allowance, want)
            with self._lock:
                now_s = self._clock()
                self._held.extend((now_s + lease.wait_s + i * lease.gap_s, lease.day) for i in range(lease.count))
                if lease.used_up:
                    renews_at = datetime.fromtimestamp((lease.day + 1) * DAY_S, UTC)
                    self._used_up = (now_s + lease.again_s, renews_at)
            return lease
        finally:
            with self._lock:
                self._flight = None


_known: dict[tuple[int, str, Allowance], tuple[Till, Permits]] = {}
_known_lock = threading.Lock()


def permits_of(till: Till | None, bucket: str, allowance: Allowance | None) -> Permits | None:
    """The process's permits of one budget, or None where there is nothing to keep to."""
    if allowance is None or allowance.is_open:
        return None
    till = till if till is not None else PROCESS_TILL
    with _known_lock:
        # The till is kept beside them: another one must not come to have its id.
        return _known.setdefault((id(till), bucket, allowance), (till, Permits(till, bucket, allowance)))[1]
