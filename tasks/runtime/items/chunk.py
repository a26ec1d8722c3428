"""One chunk of items inside a worker: each item's outcome, gathered into Arrow tables ready to commit."""

import asyncio
import gc
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pyarrow as pa

from schemas.errors import GeofixError, LakeUnwritable, StageRefused
from schemas.messages import Usage
from schemas.tables import SYSTEM_COLUMNS, TABLES
from tasks.lake.table_schema import to_arrow
from tasks.runtime.items.outcome import NO_USAGE, REJECTED, Kept, Outcome, Rejected, Row
from tasks.services.calls import spending_of
from tasks.services.errors import ServiceError, safe_text
from tasks.services.meter import Tally, counted_in, flush_spans, is_tracing, item_span

FATAL_KINDS = frozenset({"auth", "banned"})  # the next item would fail the same way
# New containers after which Python looks for cycles among the youngest, and rounds before it looks among the older
# ones. Its own 700 are made by two requests of an agent: looking through hundreds of agents again and again took a
# tenth of the time.
GC_THRESHOLDS = (10_000, 10, 10)


def freeze_gc() -> None:
    """Leave what is open by now out of later garbage collections, and let them be rarer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


@dataclass(frozen=True)
class Failure:
    """An item that could not be done this time."""

    item_id: str
    kind: str
    message: str
    fatal: bool = False
    service: str = ""  # whose answer it was
    usage: Usage = NO_USAGE  # of models, which a failed item has used too


@dataclass
class ChunkResult:
    """What came of a chunk."""

    kept: list[str] = field(default_factory=list)
    rejected: list[Row] = field(default_factory=list)  # rows of the rejects table
    failed: list[Failure] = field(default_factory=list)
    tables: dict[str, pa.Table] = field(default_factory=dict)
    gone: dict[str, dict[str, str]] = field(default_factory=dict)  # table -> key -> why
    usage: Usage = NO_USAGE
    opened_at: float | None = None  # when its worker was ready, in seconds since 1970
    sent: Tally = field(default_factory=Tally)  # requests to services, and what came

    @property
    def items(self) -> int:
        return len(self.kept) + len(self.rejected) + len(self.failed)


@dataclass(frozen=True)
class ChunkJob:
    """What a worker has to know of the stage."""

    stage: str
    run_id: str
    marker: str
    writes: tuple[str, ...]
    work: Callable[[Any, Any], Any]
    open_context: Callable[[], Any]
    concurrency: int
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def make_sync(self) -> Callable[[pl.DataFrame], ChunkResult]:
        context, opened_at = self._opened()

        def call(chunk: pl.DataFrame) -> ChunkResult:
            rows = chunk.drop("made_from").iter_rows(named=True)
            result = self.gather(
                zip(chunk["id"], chunk["made_from"], (self._guarded(r, context) for r in rows), strict=True)
            )
            result.opened_at = opened_at
            flush_spans()
            return result

        return call

    def make_async(self) -> Callable[[pl.DataFrame], Any]:
        context, opened_at = self._opened()
        limit = asyncio.Semaphore(self.concurrency)

        async def make_row(row: Row) -> Outcome | Failure:
            item_id = row["id"]
            async with limit:
                with spending_of(item_id) as spent, item_span(self.stage, self.run_id, item_id) as span:
                    try:
                        outcome: Outcome = await self.work(row, context)
                    except Exception as error:  # noqa: BLE001 - whatever an item raises is its failure, kept for retry
                        failure = replace(self._failure(item_id, error), usage=spent.paid)
                        span |= _told(failure)
                        return failure
                    span |= _told(outcome)
                # What was answered from the table `calls` was paid for by the run that made the request.
                return replace(outcome, usage=outcome.usage - spent.replayed) if spent.replayed.tokens else outcome

        async def call(chunk: pl.DataFrame) -> ChunkResult:
            rows = chunk.drop("made_from").iter_rows(named=True)
            with counted_in(Tally()) as sent:
                outcomes = await asyncio.gather(*(make_row(row) for row in rows))
            result = self.gather(zip(chunk["id"], chunk["made_from"], outcomes, strict=True))
            result.opened_at, result.sent = opened_at, sent
            if is_tracing():
                await asyncio.to_thread(flush_spans)
            return result

        return call

    def _opened(self) -> tuple[Any, float]:
        context = self.open_context()
        return context, time.time()

    def _guarded(self, row: Row, context: Any) -> Outcome | Failure:
        item_id = row["id"]  # before the work, to which the row belongs
        with item_span(self.stage, self.run_id, item_id) as span:
            outcome: Outcome | Failure
            try:
                outcome = self.work(row, context)
            except Exception as error:  # noqa: BLE001 - whatever an item raises becomes its failure, kept for retry
                outcome = self._failure(item_id, error)
            span |= _told(outcome)
            return outcome

    def _failure(self, item_id: str, error: Exception) -> Failure:
        if isinstance(error, ServiceError):
            fatal = error.kind in FATAL_KINDS
            return Failure(item_id, error.kind, safe_text(str(error), self.secrets), fatal, error.service)
        if isinstance(error, StageRefused | LakeUnwritable):
            return Failure(item_id, "refused", safe_text(str(error), self.secrets, 500), fatal=True)
        return Failure(item_id, type(error).__name__, safe_text(str(error), self.secrets))

    def gather(self, outcomes: Iterable[tuple[str, str, Outcome | Failure]]) -> ChunkResult:
        """Outcomes (of an item's id and digest) as tables with the system columns filled."""
        result = ChunkResult()
        tables: dict[str, _Rows] = {}
        now = datetime.now(UTC)
        for item_id, made_from, outcome in outcomes:
            if isinstance(outcome, Failure):
                result.failed.append(outcome)
                result.usage += outcome.usage
                continue
            if outcome.usage is not NO_USAGE:
                result.usage += outcome.usage
            if isinstance(outcome, Rejected):
                result.rejected.append(self._reject(item_id, made_from, outcome, now))
                made_from = REJECTED + made_from
            else:
                assert isinstance(outcome, Kept), f"step {self.stage} returned {type(outcome).__name__}"
                if not outcome.rows.get(self.marker):
                    raise GeofixError(f"step {self.stage} kept item {item_id} without a row for '{self.marker}'")
                result.kept.append(item_id)
                for table, keys in outcome.gone.items():
                    self._declared(table)
                    result.gone.setdefault(table, {}).update(keys)
            for table, rows in outcome.rows.items():
                self._declared(table)
                tables.setdefault(table, _Rows()).add(rows, item_id, made_from)
        result.tables = {table: rows.to_arrow(table, self.stage, self.run_id, now) for table, rows in tables.items()}
        return result

    def _declared(self, table: str) -> None:
        if table not in self.writes:
            raise GeofixError(f"step {self.stage} wrote to '{table}', which it does not declare")

    def _reject(self, item_id: str, made_from: str, outcome: Rejected, now: datetime) -> Row:
        return {
            "stage": self.stage,
            "item_id": item_id,
            "made_from": made_from,
            "run_id": self.run_id,
            "written_at": now,
            "reason": outcome.reason,
            "evidence_json": json.dumps(outcome.evidence, sort_keys=True, default=str, ensure_ascii=False),
        }


def _told(outcome: Outcome | Failure) -> dict[str, str]:
    """What the trace says of an outcome; never a message, which may quote what was answered."""
    if isinstance(outcome, Failure):
        return {"outcome": "failed", "kind": outcome.kind}
    return {"outcome": "rejected", "reason": outcome.reason} if isinstance(outcome, Rejected) else {"outcome": "kept"}


class _Rows:
    """Rows for one table, and whose they are. The system columns are made whole, not row by row: that is the cost."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.item_ids: list[str] = []
        self.made_from: list[str] = []

    def add(self, rows: list[Row], item_id: str, made_from: str) -> None:
        self.rows += rows
        self.item_ids += [item_id] * len(rows)
        self.made_from += [made_from] * len(rows)

    def to_arrow(self, table: str, stage: str, run_id: str, now: datetime) -> pa.Table:
        def repeated(value: object, kind: pa.DataType) -> pa.Array:
            return pa.repeat(pa.scalar(value, type=kind), len(self.rows))

        system = {
            "stage": repeated(stage, SYSTEM_COLUMNS["stage"]),
            "item_id": pa.array(self.item_ids, SYSTEM_COLUMNS["item_id"]),
            "made_from": pa.array(self.made_from, SYSTEM_COLUMNS["made_from"]),
            "run_id": repeated(run_id, SYSTEM_COLUMNS["run_id"]),
            "written_at": repeated(now, SYSTEM_COLUMNS["written_at"]),
        }
        return to_arrow(TABLES[table], self.rows, system)
