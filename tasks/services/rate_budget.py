"""How often a service may be asked: evenly over the minute, counted over the day.

`grant` is the whole rule, as a function of what was granted before and of the time. A `RateBudget` keeps that
standing (in this process, in a file, or in an actor that holds the file); clients take their permits from one.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from schemas.settings.endpoint import Allowance

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
class Standing:
    """What was granted of one budget."""

    next_s: float = 0.0  # unix time of the next free moment
    day: int = -1  # days since 1970, UTC
    used: int = 0  # of that day


@dataclass(frozen=True)
class Lease:
    """RateLimiter: one at each moment, `wait_s` from now, then every `gap_s`. None: ask again after `again_s`."""

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


def grant(standing: Standing, allowance: Allowance, want: int, now_s: float) -> tuple[Lease, Standing]:
    """At most `want` permits, and the standing after them."""
    day = int(now_s // DAY_S)
    used = standing.used if standing.day == day else 0
    midnight_s = (day + 1) * DAY_S - now_s
    count = min(want, MOST_AT_ONCE)
    if allowance.per_day is not None:
        count = min(count, allowance.per_day - used)
        if count <= 0:
            return Lease(0, again_s=midnight_s, used_up=True, day=day), Standing(standing.next_s, day, used)
    gap = gap_s(allowance)
    if gap == 0.0:
        return Lease(count, day=day), Standing(standing.next_s, day, used + count)
    # A standing farther ahead than it can be was written by a clock that has been set back since.
    next_s = standing.next_s if standing.next_s <= now_s + HORIZON_S + gap else now_s
    first_s = max(next_s, now_s - max(0.0, BURST_S - gap))
    ahead_s = now_s + HORIZON_S - first_s
    if ahead_s < 0:
        return Lease(0, again_s=-ahead_s, day=day), Standing(next_s, day, used)
    count = min(count, int(ahead_s / gap) + 1)
    lease = Lease(count, wait_s=first_s - now_s, gap_s=gap, day=day)
    return lease, Standing(first_s + count * gap, day, used + count)


def give_back(standing: Standing, day: int, count: int) -> Standing:
    """The standing after unused permits came back: the day's count gets them, their moments are gone."""
    if standing.day != day:
        return standing
    return Standing(standing.next_s, day, max(0, standing.used - count))


@dataclass(frozen=True)
class Paused:
    """How often and how long nothing was asked of a service, because it said that its limit was reached."""

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
    """Hands out permits of a budget, to any process that shares it, and passes on when a service wants to be left."""

    def lease(self, bucket: str, allowance: Allowance, want: int) -> Lease: ...

    def give_back(self, bucket: str, day: int, count: int) -> None: ...

    def standing(self, bucket: str) -> Standing: ...

    def pause(self, name: str, seconds: float) -> None: ...

    def paused_s(self, name: str) -> float: ...

    def pauses(self) -> dict[str, Paused]: ...


class ProcessRateBudget:
    """The budgets of this process alone, forgotten when it ends."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._standings: dict[str, Standing] = {}
        self._pauses: dict[str, Paused] = {}
        self._lock = threading.Lock()

    def lease(self, bucket: str, allowance: Allowance, want: int) -> Lease:
        with self._lock:
            standing = self._standings.get(bucket, Standing())
            lease, self._standings[bucket] = grant(standing, allowance, want, self._clock())
            return lease

    def give_back(self, bucket: str, day: int, count: int) -> None:
        with self._lock:
            self._standings[bucket] = give_back(self._standings.get(bucket, Standing()), day, count)

    def standing(self, bucket: str) -> Standing:
        with self._lock:
            return self._standings.get(bucket, Standing())

    def pause(self, name: str, seconds: float) -> None:
        with self._lock:
            self._pauses[name] = pause(self._pauses.get(name, Paused()), seconds, self._clock())

    def paused_s(self, name: str) -> float:
        with self._lock:
            return paused_s(self._pauses.get(name, Paused()), self._clock())

    def pauses(self) -> dict[str, Paused]:
        with self._lock:
            return dict(self._pauses)


PROCESS_BUDGET = ProcessRateBudget()
