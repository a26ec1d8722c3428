"""What limits requests to a host besides budgets: circuit breakers, adaptive concurrency, and pauses as reported.

`Breaker` suspends requests after failures in a row, and one at a time probes whether to go on. The same class serves
outages and rate limits: a dead or refusing service is waited for once by all requests together. `ConcurrencyLimiter`
is a semaphore that finds how many requests at once a host answers best. `HostLimits` holds both for one kind of request
to one host.
"""

import asyncio
import functools
import heapq
import itertools
import logging
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from schemas.settings.services import Endpoint
from tasks.services.rate_budget import LONGEST_PAUSE_S, Paused, RateBudget

LONGEST_LIMIT_PAUSE_S = 900.0  # without a time named: limits by the minute are over sooner
BRIEF_S = 1.0  # the first pause of a host that answered a moment ago
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

    def failed(
        self, is_probe: bool = False, named_s: float | None = None, why: str = "", brief: bool = False
    ) -> float | None:
        """The service is out or refuses. Returns the pause, where this begins one.

        `brief`: it answered a moment ago, so that a second may be enough; the pauses double from there.
        """
        self._in_a_row, self._last = self._in_a_row + 1, why
        if is_probe:
            self._probing = False
        elif self.open:  # it was under way when the breaker opened
            self._until_s = max(self._until_s, self._clock() + min(named_s or 0.0, LONGEST_PAUSE_S))
            return None
        elif named_s is None and self._in_a_row < self._after:
            return None
        if named_s is not None:
            # Refused again after the very time it named, it is queried less and less often.
            pause_s = max(named_s, self._at_least_s) if is_probe else named_s
            self._at_least_s = min(2 * self._at_least_s, self._first_pause_s)
            return self._open(pause_s)
        if is_probe:
            self._pause_s = min(2 * self._pause_s, self._longest_s)
        elif brief:
            self._pause_s = min(BRIEF_S, self._pause_s)
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


class ResizableSemaphore:
    """How many may be inside at once, in one event loop; the number may change at any time."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.inside = 0
        self._queue: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap

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

    def resize(self, limit: float) -> None:
        """From now on so many; who is inside stays."""
        self.limit = limit
        self._admit()

    def _admit(self) -> None:
        while self._queue and self.inside < int(self.limit):
            turn = heapq.heappop(self._queue)[2]
            if not turn.done():
                turn.set_result(None)
                self.inside += 1


class ConcurrencyLimiter(ResizableSemaphore):
    """Additive increase, multiplicative decrease, for one host in one event loop.

    While latency holds it grows. When answers take much longer, either requests pile up before the host, then fewer
    of them bring as many answers, or the host has become slower by itself, then they bring fewer. Which it is shows
    by trying. It learns only while it is full: a limit that is not reached says nothing about the host.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(float(min(START, most)))
        self._most, self._clock = most, clock
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
            self.resize(min(float(self._most), self.limit + (1.0 if self._probing else 1.0 / self.limit)))

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
            self._best_s = usual_s
            self.resize(tried.limit)
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


SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S = 0.02, 5.0
QUICKER = 0.8  # of the interval, after an answer


class Pace:
    """The time between requests that a host takes, learned from its refusals: many name neither limit nor time.

    A refusal doubles the interval, an answer shortens it. So a host that refuses a fifth of all requests by chance is
    not slowed down, and one that takes a request a second gets about one a second.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.interval_s = 0.0
        self._next_s = self._raised_at_s = self._answered_at_s = float("-inf")

    async def wait(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Wait for the next moment at which a request may be sent."""
        if self.interval_s:
            now_s = self._clock()
            at_s = max(now_s, self._next_s)
            self._next_s = at_s + self.interval_s
            if at_s > now_s:
                await sleep(at_s - now_s)

    def refused(self, sent_at_s: float) -> None:
        """A request of that moment was too many: one step for all that were under way."""
        if sent_at_s >= self._raised_at_s:
            self._raised_at_s = self._clock()
            self.interval_s = min(LONGEST_INTERVAL_S, max(SHORTEST_INTERVAL_S, 2 * self.interval_s))

    def answered(self) -> None:
        """A request was answered."""
        self._answered_at_s = self._clock()
        self.interval_s = self.interval_s * QUICKER if self.interval_s > SHORTEST_INTERVAL_S / 2 else 0.0

    def answered_lately(self, seconds: float) -> bool:
        """Whether the host answered within that time: it is not out, whatever it says."""
        return self._clock() - self._answered_at_s <= seconds


class HostLimits:
    """One kind of request to one host. A rate limit holds for all kinds."""

    def __init__(self, name: str, endpoint: Endpoint, limit: Breaker) -> None:
        self.name = name
        self.pace = Pace()
        self.concurrency = ConcurrencyLimiter(endpoint.max_concurrency)
        self.outage = Breaker(
            endpoint.outage_after,
            endpoint.outage_pause_s,
            endpoint.max_wait_s,
            endpoint.outage_patience_s,
            only_if_answered=True,
        )
        self.limit = limit


_Key = tuple[str, str, str, str]
FILES = ("picture", "file")  # kinds of request that go to a store of files, which has limits of its own


class _Hosts:
    def __init__(self) -> None:
        self.by_kind: dict[_Key, HostLimits] = {}
        self.limits: dict[_Key, Breaker] = {}


# Futures belong to a loop, and are dropped with it.
_hosts: WeakKeyDictionary[asyncio.AbstractEventLoop, _Hosts] = WeakKeyDictionary()


@functools.lru_cache(maxsize=256)
def _netloc(address: str) -> str:
    return urlsplit(address).netloc


def host_limits(service: str, endpoint: Endpoint, kind: str, address: str) -> HostLimits:
    """The running loop's one state for this kind of request to this address's host."""
    netloc = _netloc(address)
    key = (service, endpoint.base_url, kind, netloc)
    loop = asyncio.get_running_loop()
    hosts = _hosts.get(loop) or _hosts.setdefault(loop, _Hosts())
    if key not in hosts.by_kind:
        # As many refusals in a row as one request meets before it would give up.
        fresh = Breaker(endpoint.max_attempts, endpoint.limit_pause_s, LONGEST_LIMIT_PAUSE_S, endpoint.limit_patience_s)
        apart = kind if kind in FILES else ""
        limit = hosts.limits.setdefault((service, endpoint.base_url, apart, netloc), fresh)
        hosts.by_kind[key] = HostLimits(f"{service} {netloc} {apart}".strip(), endpoint, limit)
    return hosts.by_kind[key]


REPORT_EVERY_S = 5.0

logger = logging.getLogger("geofix.services")


class Pauses:
    """The pauses of a stage's workers, as recorded in the rate budget they share."""

    def __init__(self, rate_budget: RateBudget, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate_budget, self._clock = rate_budget, clock
        self._before = self._known = rate_budget.pauses()
        self._next_s = clock() + REPORT_EVERY_S

    def log_new(self) -> None:
        """Log new pauses; reads the rate budget every few seconds, however often it is called."""
        if self._clock() < self._next_s:
            return
        self._next_s = self._clock() + REPORT_EVERY_S
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
        self._known = self._rate_budget.pauses()
        return self.known_s()

    def known_s(self) -> Mapping[str, float]:
        """The same, as of the last time that the rate budget was read."""
        taken: dict[str, float] = {}
        for name, paused in self._known.items():
            ahead_s = max(0.0, paused.until_s - time.time())
            seconds = paused.total_s - ahead_s - self._before.get(name, Paused()).total_s
            if seconds > 0:
                service = name.split()[0]
                taken[service] = taken.get(service, 0.0) + seconds
        return taken
