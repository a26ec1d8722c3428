"""How often a service may be queried: evenly over the minute, counted over the day.

`grant` is the whole rule, as a function of what was granted before and of the time. A `RateBudget` keeps that
state: in this process, in a file that all processes of a lake share, or in an actor that holds the file.
`RateLimiter` leases permits from it, in batches for all requests of this process that wait.
"""

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from schemas.settings.endpoint import Allowance
from tasks.services.response_store import SharedFile

DAY_S = 86_400
# A permit may be used up to this long after its moment. The pace leaves room for it, so that no minute ever holds
# more requests than were allowed: 60 of 61 seconds' worth, 98.4 % of the limit.
SLACK_S = 1.0
BURST_S = 0.75  # moments not taken, on a busy machine, may be taken this much later
HORIZON_S = 0.25  # no moment farther ahead is given away: what a killed process held is lost
MOST_AT_ONCE = 64
# However long a service says: milliseconds are given for seconds, and a limit by the day is worth asking each hour.
LONGEST_PAUSE_S = 3600.0


@dataclass(frozen=True)
class BudgetState:
    """What was granted of one budget."""

    next_s: float = 0.0  # unix time of the next free moment
    day: int = -1  # days since 1970, UTC
    used: int = 0  # of that day


@dataclass(frozen=True)
class Lease:
    """Permits: the first in `wait_s`, the next every `gap_s`. With a count of 0, ask again after `again_s`."""

    count: int
    wait_s: float = 0.0
    gap_s: float = 0.0
    again_s: float = 0.0
    used_up: bool = False  # it is the day's budget that is used up: it renews after `again_s`
    day: int = -1


def gap_s(allowance: Allowance) -> float:
    """Seconds from one permit to the next."""
    return 0.0 if allowance.per_minute is None else (60.0 + SLACK_S) / allowance.per_minute


def usable_s(allowance: Allowance) -> float:
    """How long after its moment a permit is still good: a slow pace is kept from one request to the next."""
    return max(0.1, SLACK_S - gap_s(allowance))


def grant(state: BudgetState, allowance: Allowance, want: int, now_s: float) -> tuple[Lease, BudgetState]:
    """At most `want` permits, and the state after them."""
    day = int(now_s // DAY_S)
    used = state.used if state.day == day else 0
    midnight_s = (day + 1) * DAY_S - now_s
    count = min(want, MOST_AT_ONCE)
    if allowance.per_day is not None:
        count = min(count, allowance.per_day - used)
        if count <= 0:
            return Lease(0, again_s=midnight_s, used_up=True, day=day), BudgetState(state.next_s, day, used)
    gap = gap_s(allowance)
    if gap == 0.0:
        return Lease(count, day=day), BudgetState(state.next_s, day, used + count)
    # A state farther ahead than it can be was written by a clock that has been set back since.
    next_s = state.next_s if state.next_s <= now_s + HORIZON_S + gap else now_s
    first_s = max(next_s, now_s - max(0.0, BURST_S - gap))
    ahead_s = now_s + HORIZON_S - first_s
    if ahead_s < 0:
        return Lease(0, again_s=-ahead_s, day=day), BudgetState(next_s, day, used)
    count = min(count, int(ahead_s / gap) + 1)
    lease = Lease(count, wait_s=first_s - now_s, gap_s=gap, day=day)
    return lease, BudgetState(first_s + count * gap, day, used + count)


def give_back(state: BudgetState, day: int, count: int) -> BudgetState:
    """The state after unused permits came back: the day's count gets them, their moments are gone."""
    if state.day != day:
        return state
    return BudgetState(state.next_s, day, max(0, state.used - count))


@dataclass(frozen=True)
class Paused:
    """How often and how long nothing was requested of a service, because it said that its limit was reached."""

    until_s: float = 0.0  # unix time
    times: int = 0
    total_s: float = 0.0


def pause(before: Paused, seconds: float, now_s: float) -> Paused:
    """After a process was told to wait; several told at once make one pause. 0: it is over."""
    if seconds <= 0:
        return Paused(min(now_s, before.until_s), before.times, before.total_s - paused_s(before, now_s))
    running = paused_s(before, now_s) > 0
    until_s = max(before.until_s if running else now_s, now_s + min(seconds, LONGEST_PAUSE_S))
    longer_s = until_s - (before.until_s if running else now_s)
    return Paused(until_s, before.times + (not running), before.total_s + longer_s)


def paused_s(paused: Paused, now_s: float) -> float:
    """Seconds still to wait. An end farther ahead than it can be was written by a clock set back since."""
    left_s = paused.until_s - now_s
    return left_s if 0.0 < left_s <= LONGEST_PAUSE_S else 0.0


class RateBudget(Protocol):
    """Hands out permits of a budget to the processes that share it, and tells them when a service asks for a pause."""

    def lease(self, bucket: str, allowance: Allowance, want: int) -> Lease: ...

    def give_back(self, bucket: str, day: int, count: int) -> None: ...

    def state(self, bucket: str) -> BudgetState: ...

    def pause(self, name: str, seconds: float) -> None: ...

    def paused_s(self, name: str) -> float: ...

    def pauses(self) -> dict[str, Paused]: ...


BudgetStates = tuple[dict[str, BudgetState], dict[str, Paused]]  # states by bucket, pauses by service


class ProcessRateBudget:
    """The budgets of this process alone, forgotten when it ends."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._held: BudgetStates = {}, {}

    @contextlib.contextmanager
    def _states(self) -> Iterator[BudgetStates]:
        """All states and pauses, for one process at a time."""
        with self._lock:
            yield self._held

    def lease(self, bucket: str, allowance: Allowance, want: int) -> Lease:
        """At most `want` permits of a budget."""
        with self._states() as (states, _):
            # The clock is read inside: time spent waiting for the file must not count as a moment missed.
            lease, states[bucket] = grant(states.get(bucket, BudgetState()), allowance, want, self._clock())
            return lease

    def give_back(self, bucket: str, day: int, count: int) -> None:
        """Put back permits that were not used."""
        with self._states() as (states, _):
            states[bucket] = give_back(states.get(bucket, BudgetState()), day, count)

    def state(self, bucket: str) -> BudgetState:
        """What was granted so far."""
        with self._states() as (states, _):
            return states.get(bucket, BudgetState())

    def pause(self, name: str, seconds: float) -> None:
        """A service is to be sent nothing for this time; 0: it answers again."""
        with self._states() as (_, pauses):
            pauses[name] = pause(pauses.get(name, Paused()), seconds, self._clock())

    def paused_s(self, name: str) -> float:
        """Seconds for which a service still wants to be sent nothing."""
        with self._states() as (_, pauses):
            return paused_s(pauses.get(name, Paused()), self._clock())

    def pauses(self) -> dict[str, Paused]:
        """All pauses so far, by service."""
        with self._states() as (_, pauses):
            return dict(pauses)


PROCESS_BUDGET = ProcessRateBudget()

_TABLES = (
    "CREATE TABLE IF NOT EXISTS standings (bucket TEXT PRIMARY KEY, next_s REAL, day INTEGER, used INTEGER)",
    "CREATE TABLE IF NOT EXISTS pauses (name TEXT PRIMARY KEY, until_s REAL, times INTEGER, total_s REAL)",
)


class BudgetFile(ProcessRateBudget):
    """The budgets in a small SQLite file. It travels to other processes of the machine, each of which opens the file.

    A permit is counted before it is used, in one transaction, so a process killed at any moment can only have used
    fewer than the file says: at most the one lease it held is lost.
    """

    def __init__(self, path: str | Path, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self.path = str(path)
        remedy = "if the file is damaged, delete it, and the day's count starts anew"
        self._file = SharedFile(path, _TABLES, "the budgets of requests", remedy)

    def __reduce__(self) -> tuple[Any, ...]:
        return (BudgetFile, (self.path,))

    @contextlib.contextmanager
    def _states(self) -> Iterator[BudgetStates]:
        with self._file.transaction() as connection:
            states: dict[str, BudgetState] = _read(connection, "standings", BudgetState)
            pauses: dict[str, Paused] = _read(connection, "pauses", Paused)
            before = {**states}, {**pauses}
            yield states, pauses
            _write(connection, "standings", before[0], states)
            _write(connection, "pauses", before[1], pauses)


def _read(connection: sqlite3.Connection, table: str, kind: type[Any]) -> dict[str, Any]:
    return {key: kind(*row) for key, *row in connection.execute(f"SELECT * FROM {table}")}


def _write(connection: sqlite3.Connection, table: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    changed = [(key, *astuple(row)) for key, row in after.items() if row != before.get(key)]
    connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?)", changed)


# Asking the rate budget may wait for a file or another node: its own thread, which decoding pictures never fills.
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

    async def acquire(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Wait for a permit and its moment; UsedUp if the day has none left."""
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
        moment_s = None
        with self._lock:
            now_s = self._clock()
            while self._held and moment_s is None:
                permit = self._held.popleft()
                if now_s <= permit.good_until_s:
                    moment_s = permit.moment_s
                else:
                    stale[permit.day] = stale.get(permit.day, 0) + 1
            if moment_s is None and self._used_up is not None:
                if now_s < self._used_up[0]:
                    raise UsedUp(self._used_up[1])
                self._used_up = None
        if self._allowance.per_day is not None:
            for day, count in stale.items():
                asking.submit(self._rate_budget.give_back, self._bucket, day, count)
        return moment_s

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


def rate_limiter_of(rate_budget: RateBudget | None, bucket: str, allowance: Allowance) -> RateLimiter:
    """The process's permits of one budget."""
    rate_budget = rate_budget if rate_budget is not None else PROCESS_BUDGET
    with _known_lock:
        # The rate budget is kept beside them: another one must not come to have its id.
        return _known.setdefault(
            (id(rate_budget), bucket, allowance), (rate_budget, RateLimiter(rate_budget, bucket, allowance))
        )[1]
