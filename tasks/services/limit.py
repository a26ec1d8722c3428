"""A ceiling on how often one process asks one service."""

import threading
import time
from collections.abc import Callable


class RateLimit:
    """Hands out moments to send, evenly spaced, after a burst of at most one second's worth.

    It knows nothing of event loops: callers ask how long to wait and wait by themselves, so one limit serves every
    thread and loop of the process.
    """

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._gap_s = 60.0 / per_minute
        self._burst_s = max(0.0, 1.0 - self._gap_s)
        self._clock = clock
        self._next_s = float("-inf")
        self._lock = threading.Lock()

    def reserve(self) -> float:
        """Seconds to wait before sending; the moment is then taken."""
        with self._lock:
            now_s = self._clock()
            # Unused moments may be used later, but only those of the last second.
            moment_s = max(self._next_s, now_s - self._burst_s)
            self._next_s = moment_s + self._gap_s
            return max(0.0, moment_s - now_s)


_shared: dict[tuple[str, float], RateLimit] = {}
_shared_lock = threading.Lock()


def shared_limit(base_url: str, per_minute: float | None) -> RateLimit | None:
    """The process's one limit for this address, or None where there is no ceiling."""
    if per_minute is None:
        return None
    with _shared_lock:
        return _shared.setdefault((base_url, per_minute), RateLimit(per_minute))
