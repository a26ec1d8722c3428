"""Commits results in batches, in a thread of its own while the work goes on, and counts how far a run is."""

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import polars as pl

from schemas.messages import Usage
from tasks.runtime.items.chunk import ChunkResult, Failure
from tasks.runtime.items.ledger import Ledger
from tasks.runtime.items.outcome import Tick
from tasks.services.meter import Tally

BATCH_ITEMS = 50_000  # a commit after this many items,
BATCH_SECONDS = 5.0  # or after this long
MOST_WAITING = 2  # commits: one in flight and one behind it; then the work waits


class Batch:
    """Collects results until the next commit, and reasons and hashed ids of all items. Rows are dropped once committed.

    Of ten million items the ids would be gigabytes, and only those of failed ones are requested again.
    """

    def __init__(self, ledger: Ledger, progress: "Progress") -> None:
        self._ledger, self._progress = ledger, progress
        self._pending: list[ChunkResult] = []
        self._items = 0
        self._since = time.monotonic()
        self._thread = ThreadPoolExecutor(1, "commit")
        self._commits: deque[Future[None]] = deque()
        self._hashes: list[pl.Series] = []
        self.failed: list[str] = []  # ids
        self.reasons: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.usage = Usage()
        self.sent = Tally()
        self.opened_at: float | None = None  # when the first worker was ready

    def add(self, result: ChunkResult) -> Failure | None:
        """Add a result; returns the failure that has to stop the step, if there is one."""
        fatal = next((failure for failure in result.failed if failure.fatal), None)
        # What stops the step is not an item's own failure, and is not recorded as one.
        result.failed = [failure for failure in result.failed if not failure.fatal]
        self._pending.append(result)
        self._items += result.items
        self.usage += result.usage
        self.sent += result.sent
        if result.opened_at is not None:
            self.opened_at = min(self.opened_at or result.opened_at, result.opened_at)
        if self._items >= BATCH_ITEMS or time.monotonic() - self._since > BATCH_SECONDS:
            self._hand_over()
        self._progress.add(result)
        return fatal

    def commit(self) -> None:
        """Commit what is pending and wait until all is written; raises what a commit raised."""
        try:
            self._hand_over()
            while self._commits:
                self._await_one()
        finally:
            self._thread.shutdown(cancel_futures=True)

    def hashes(self) -> pl.Series:
        """Hashes of the ids of all items that were kept, rejected or failed; they hold within this process."""
        return pl.concat([pl.Series([], dtype=pl.UInt64), *self._hashes])

    def _hand_over(self) -> None:
        while self._commits and (self._commits[0].done() or len(self._commits) >= MOST_WAITING):
            self._await_one()
        results, self._pending, self._items = self._pending, [], 0
        self._since = time.monotonic()
        if not results:
            return
        for result in results:
            failed = [failure.item_id for failure in result.failed]
            ids = [*result.kept, *(row["item_id"] for row in result.rejected), *failed]
            self._hashes.append(pl.Series(ids, dtype=pl.String).hash())
            self.failed += failed
            self.reasons.update(row["reason"] for row in result.rejected)
            self.failures.update(failure.kind for failure in result.failed)
        self._commits.append(self._thread.submit(self._ledger.commit, results))

    def _await_one(self) -> None:
        self._commits[0].result()  # first: what is interrupted here, or has failed, is still to be waited for
        self._commits.popleft()


class Progress:
    """Reports the counts of a run while it goes on."""

    def __init__(
        self, tell: Callable[[Tick], None], stage: str, total: int, skipped: int, began_s: float | None = None
    ) -> None:
        self._tell, self._start = tell, began_s or time.monotonic()
        self.counts = Tick(stage, total, skipped)
        self.waited_s: Mapping[str, float] = {}
        tell(self.counts)

    def add(self, result: ChunkResult) -> None:
        now = self.counts
        self._change(
            kept=now.kept + len(result.kept),
            rejected=now.rejected + len(result.rejected),
            failed=now.failed + len(result.failed),
            sent=now.sent + result.sent,
            usage=now.usage + result.usage,
            waited_s=self.waited_s,
        )

    def waits_for(self, text: str) -> None:
        """Say what the first result waits for."""
        self._change(waits_for=text)

    def finish(self) -> None:
        self._change(finished=True, waited_s=self.waited_s)

    def _change(self, **fields: Any) -> None:
        self.counts = replace(self.counts, seconds=time.monotonic() - self._start, **fields)
        self._tell(self.counts)
