"""Room for pixels: how many may be decoded at once in a process.

A file of a megabyte may hold a hundred million pixels, and each costs up to 16 bytes while it is worked on. Rows are
worked on several at a time, so it is their sum that must be bounded.
"""

import contextlib
import threading
from collections.abc import Iterator


class Room:
    """A semaphore for threads, counted in pixels: first come, first served."""

    def __init__(self, pixels: int) -> None:
        self._most = pixels
        self._taken = 0
        self._turn = threading.Lock()
        self._freed = threading.Condition()

    @contextlib.contextmanager
    def take(self, pixels: int) -> Iterator[None]:
        """Hold this many pixels while the block runs; a request above the total gets the total."""
        wanted = min(pixels, self._most)
        with self._turn, self._freed:
            self._freed.wait_for(lambda: self._taken + wanted <= self._most)
            self._taken += wanted
        try:
            yield
        finally:
            with self._freed:
                self._taken -= wanted
                self._freed.notify_all()
