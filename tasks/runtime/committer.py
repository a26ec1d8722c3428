"""What a run has in hand: results that wait for their commit, and how far it has come."""

import time
from collections.abc import Callable

from schemas.messages import Usage
from tasks.runtime.chunk import ChunkResult, Failure
from tasks.runtime.ledger import Ledger
from tasks.runtime.outcome import Row, Tick

BATCH_ITEMS = 20_000  # a commit after so many items,
BATCH_SECONDS = 5.0  # or after so long


class Batch:
    """Results since the last commit, and the names of all items so far."""

    def __init__(self, ledger: Ledger, progress: "Progress") -> None:
        self._ledger, self._progress = ledger, progress
        self._pending: list[ChunkResult] = []
        self._since = time.monotonic()
        self.kept: list[str] = []
        self.rejected: list[Row] = []
        self.failed: list[Failure] = []
        self.usage = Usage()
        self.opened_at: float | None = None  # when the first worker was ready

    def add(self, result: ChunkResult) -> Failure | None:
        """Take a result in; returns the failure that ought to stop the stage, if there is one."""
        fatal = next((failure for failure in result.failed if failure.fatal), None)
        # What stops the stage is no item's own failure: nothing of it is written down.
        result.failed = [failure for failure in result.failed if not failure.fatal]
        self._pending.append(result)
        self.usage += result.usage
        if result.opened_at is not None:
            self.opened_at = min(self.opened_at or result.opened_at, result.opened_at)
        enough = sum(r.items for r in self._pending) >= BATCH_ITEMS
        if enough or time.monotonic() - self._since > BATCH_SECONDS:
            self.commit()
        self._progress.add(result)
        return fatal

    def commit(self) -> None:
        self._ledger.commit(self._pending)
        for result in self._pending:
            self.kept += result.kept
            self.rejected += result.rejected
            self.failed += result.failed
        self._pending, self._since = [], time.monotonic()


class Progress:
    """What a run tells while it goes on."""

    def __init__(
        self, tell: Callable[[Tick], None], stage: str, total: int, skipped: int, began_s: float | None = None
    ) -> None:
        self._tell, self._start = tell, began_s or time.monotonic()
        self.counts = Tick(stage, total, skipped)
        self._starting_s = 0.0
        self._wall_start = time.time()
        tell(self.counts)

    def add(self, result: ChunkResult) -> None:
        now = self.counts
        if result.opened_at is not None and not self._starting_s:
            self._starting_s = max(0.0, result.opened_at - self._wall_start)
        self._set(
            now.kept + len(result.kept), now.rejected + len(result.rejected), now.failed + len(result.failed), False
        )

    def finish(self) -> None:
        self._set(self.counts.kept, self.counts.rejected, self.counts.failed, True)

    def _set(self, kept: int, rejected: int, failed: int, finished: bool) -> None:
        before = self.counts
        seconds = time.monotonic() - self._start
        self.counts = Tick(
            before.stage, before.total, before.skipped, kept, rejected, failed, seconds, finished, self._starting_s
        )
        self._tell(self.counts)
