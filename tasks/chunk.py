"""One chunk of items inside a worker: each item's outcome, gathered into Arrow tables ready to commit."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pyarrow as pa

from schemas.messages import Usage
from schemas.tables import TABLES
from tasks.errors import GeofixError, StageRefused
from tasks.outcome import Kept, Outcome, Rejected, Row
from tasks.services.errors import ServiceError, safe_text
from tasks.table_schema import to_arrow

# Rows of a rejected item carry this before their digest: only the rejects table says that the item is finished.
REJECTED = "rejected:"
FATAL_KINDS = frozenset({"auth"})  # the next item would fail the same way


@dataclass(frozen=True)
class Failure:
    """An item that could not be done this time."""

    item_id: str
    kind: str
    message: str
    fatal: bool = False


@dataclass
class ChunkResult:
    """What came of a chunk."""

    kept: list[str] = field(default_factory=list)
    rejected: list[Row] = field(default_factory=list)  # rows of the rejects table
    failed: list[Failure] = field(default_factory=list)
    tables: dict[str, pa.Table] = field(default_factory=dict)
    usage: Usage = Usage()

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
    work: Callable[[Row, Any], Any]
    open_bench: Callable[[], Any]
    concurrency: int
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def make_sync(self) -> Callable[[pl.DataFrame], ChunkResult]:
        bench = self.open_bench()

        def call(chunk: pl.DataFrame) -> ChunkResult:
            return self.gather([(row, self._guarded(row, bench)) for row in chunk.iter_rows(named=True)])

        return call

    def make_async(self) -> Callable[[pl.DataFrame], Any]:
        bench = self.open_bench()
        gate = asyncio.Semaphore(self.concurrency)

        async def one(row: Row) -> tuple[Row, Outcome | Failure]:
            async with gate:
                try:
                    return row, await self.work(_own(row), bench)
                except Exception as error:  # noqa: BLE001 - whatever an item raises becomes its failure, kept for retry
                    return row, self._failure(row["id"], error)

        async def call(chunk: pl.DataFrame) -> ChunkResult:
            return self.gather(await asyncio.gather(*(one(row) for row in chunk.iter_rows(named=True))))

        return call

    def _guarded(self, row: Row, bench: Any) -> Outcome | Failure:
        try:
            return self.work(_own(row), bench)
        except Exception as error:  # noqa: BLE001 - whatever an item raises becomes its failure, kept for retry
            return self._failure(row["id"], error)

    def _failure(self, item_id: str, error: Exception) -> Failure:
        if isinstance(error, ServiceError):
            return Failure(item_id, error.kind, safe_text(str(error), self.secrets), error.kind in FATAL_KINDS)
        if isinstance(error, StageRefused):
            return Failure(item_id, "refused", safe_text(str(error), self.secrets, 500), fatal=True)
        return Failure(item_id, type(error).__name__, safe_text(str(error), self.secrets))

    def gather(self, outcomes: list[tuple[Row, Outcome | Failure]]) -> ChunkResult:
        """Outcomes as tables with the system columns filled."""
        result = ChunkResult()
        rows: dict[str, list[Row]] = {}
        now = datetime.now(UTC)
        for item, outcome in outcomes:
            item_id, made_from = item["id"], item["made_from"]
            if isinstance(outcome, Failure):
                result.failed.append(outcome)
                continue
            result.usage += outcome.usage
            system = {"stage": self.stage, "item_id": item_id, "run_id": self.run_id, "written_at": now}
            if isinstance(outcome, Rejected):
                system["made_from"] = REJECTED + made_from
                evidence = json.dumps(outcome.evidence, sort_keys=True, default=str, ensure_ascii=False)
                result.rejected.append(
                    {**system, "made_from": made_from, "reason": outcome.reason, "evidence_json": evidence}
                )
            else:
                assert isinstance(outcome, Kept), f"stage {self.stage} returned {type(outcome).__name__}"
                system["made_from"] = made_from
                if not outcome.rows.get(self.marker):
                    raise GeofixError(f"stage {self.stage} kept item {item_id} without a row for '{self.marker}'")
                result.kept.append(item_id)
            for table, table_rows in outcome.rows.items():
                if table not in self.writes:
                    raise GeofixError(f"stage {self.stage} wrote to '{table}', which it does not declare")
                rows.setdefault(table, []).extend({**row, **system} for row in table_rows)
        result.tables = {table: to_arrow(TABLES[table], table_rows) for table, table_rows in rows.items()}
        return result


def _own(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "made_from"}
