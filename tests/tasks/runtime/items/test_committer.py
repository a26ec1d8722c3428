"""Commits beside the work: at most one in flight and one waiting, errors surface, nothing finished is lost."""

import threading
from typing import Any

import polars as pl
import pytest

import tasks.runtime.items.committer
from schemas.errors import LakeError
from tasks.runtime.items.chunk import ChunkResult, Failure
from tasks.runtime.items.committer import Batch, Progress
from tasks.runtime.items.stage_table import KeyHashes

WAIT_S = 300


class SlowLedger:
    """Notes what is committed, once it may."""

    def __init__(self, error: Exception | None = None) -> None:
        self.go, self.begun = threading.Event(), threading.Semaphore(0)
        self.committed: list[list[str]] = []
        self.error = error

    def commit(self, results: list[ChunkResult]) -> None:
        self.begun.release()
        assert self.go.wait(WAIT_S)
        if self.error:
            raise self.error
        self.committed.append([name for result in results for name in result.kept])


@pytest.fixture(autouse=True)
def every_item_is_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.runtime.items.committer, "BATCH_ITEMS", 1)


def batch_of(ledger: Any) -> Batch:
    return Batch(ledger, Progress(lambda tick: None, "s", 9, 0))


def test_the_work_goes_on_while_a_commit_runs_and_waits_for_the_third() -> None:
    ledger = SlowLedger()
    batch = batch_of(ledger)
    batch.add(ChunkResult(kept=["a"]))
    assert ledger.begun.acquire(timeout=WAIT_S)
    batch.add(ChunkResult(kept=["b"]))  # returns, although nothing is committed
    assert ledger.committed == []
    third = threading.Thread(target=batch.add, args=(ChunkResult(kept=["c"]),))
    third.start()
    third.join(0.2)
    assert third.is_alive(), "one in flight, one waiting: the work waits"
    ledger.go.set()
    third.join(WAIT_S)
    batch.commit()
    assert ledger.committed == [["a"], ["b"], ["c"]]
    assert batch.hashes().equals(pl.Series(["a", "b", "c"]).hash())


def test_what_a_commit_raises_ends_the_run() -> None:
    ledger = SlowLedger(LakeError("the disk is full"))
    ledger.go.set()
    batch = batch_of(ledger)
    with pytest.raises(LakeError, match="the disk is full"):
        for name in "abcd":
            batch.add(ChunkResult(kept=[name]))
    with pytest.raises(LakeError, match="the disk is full"):
        batch.commit()


def test_only_hashes_failed_ids_and_counts_are_kept_of_what_is_committed() -> None:
    ledger = SlowLedger()
    ledger.go.set()
    batch = batch_of(ledger)
    rejected = [{"item_id": "r", "reason": "blurred", "evidence_json": "x" * 1000}]
    batch.add(ChunkResult(rejected=rejected, failed=[Failure("f", "outage", "no"), Failure("g", "auth", "no", True)]))
    batch.commit()
    assert batch.hashes().equals(pl.Series(["r", "f"]).hash()) and batch.failed == ["f"]
    assert (batch.reasons, batch.failures) == ({"blurred": 1}, {"outage": 1})


def test_a_set_of_hashes_finds_what_was_added_and_nothing_else() -> None:
    hashes = KeyHashes()
    assert not hashes and not hashes.holds(pl.Series(["a"]).hash()).any()
    names = pl.Series([f"n{k}" for k in range(1000)])
    for begin in range(0, 1000, 70):
        hashes.add(names[begin : begin + 70].hash())
    assert hashes and hashes.holds(names.hash()).all()
    assert not hashes.holds((names + "x").hash()).any()
