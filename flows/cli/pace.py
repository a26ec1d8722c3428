"""How fast a stage goes now, and when it will be done."""

import time
from collections import deque

WINDOW_S = 30.0  # the rate is that of the last half minute,
WINDOW_ITEMS = 10  # or of the last ten results: starts and slow first items say little about the rest
KNOWN_ITEMS = 5  # fewer results than this,
KNOWN_S = 5.0  # or over a shorter time, are not enough for an estimate


class Pace:
    """The recent rate of one stage."""

    def __init__(self, now: float | None = None) -> None:
        self.began_s = time.monotonic() if now is None else now
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, done: int, now: float | None = None) -> None:
        """Note how many items are done."""
        moment = time.monotonic() if now is None else now
        if done and (not self._seen or done > self._seen[-1][1]):
            self._seen.append((moment, done))
        while len(self._seen) > WINDOW_ITEMS and moment - self._seen[1][0] > WINDOW_S:
            self._seen.popleft()

    def rate(self) -> float | None:
        """Items a second, once enough is known."""
        if len(self._seen) < 2:
            return None
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        if last - first < KNOWN_ITEMS or last_s - first_s < KNOWN_S:
            return None
        return (last - first) / (last_s - first_s)

    def words(self, done: int, todo: int) -> str:
        """Rate and time left, or nothing while they are not known."""
        rate = self.rate()
        if rate is None:
            return ""
        return f"  {rate:,.1f}/s, {duration((todo - done) / rate)} left"


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
