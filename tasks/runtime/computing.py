"""Threads for computing beside an event loop that waits for services.

Pictures are decoded a few at a time in threads of their own, so memory stays bounded however many arrive. Fewer items
are begun while decoding lags behind: what is fetched would only wait, and be lost if the process is killed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from tasks.services.limits import ResizableSemaphore

THREADS = 2  # a worker has one core: while one computes, the other may be reading or writing

P = ParamSpec("P")
T = TypeVar("T")


class Computing:
    """A few threads for what takes long enough to starve an event loop."""

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "computing")
        self._under_way = 0

    @property
    def waiting(self) -> int:
        """How many calls wait for a thread."""
        return max(0, self._under_way - self._threads)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the function returns, computed in a thread."""
        self._under_way += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args, **kwargs))
        finally:
            self._under_way -= 1


class AdaptiveLimiter:
    """How many items are under way: more while they wait for others, fewer while they wait for a thread."""

    def __init__(self, least: int, most: int, computing: Computing) -> None:
        self._least, self._most, self._computing = least, most, computing
        self._places = ResizableSemaphore(min(least, most))

    @property
    def limit(self) -> int:
        """Items that may be under way now."""
        return int(self._places.limit)

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """A place among the items under way, from an item's first request to its last."""
        await self._places.enter()
        try:
            yield
        finally:
            if self._computing.waiting:
                self._places.resize(max(self._least, self.limit - 1))
            elif self._places.inside >= self.limit:
                self._places.resize(min(self._most, self.limit + 1))
            self._places.leave()


computing = Computing()
