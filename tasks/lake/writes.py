"""Writing Delta tables: append, upsert, tombstone, and a change that ends, revives and inserts rows in one commit.

Every write is one Delta commit that carries its run, batch, configuration hash, code version and input versions. A
commit of the same run and batch is made once, however often it is requested.

A commit that names a stage also counts: the table's transaction `stage:NAME` goes up by one. A writer that remembers
the count knows whether another run of its stage has written since, and Delta refuses two commits that raise the same
count, on a disk and on an object store alike.
"""

import json
import random
import re
import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from schemas.errors import LakeError, LakeUnwritable
from schemas.tables import TABLES, Table
from tasks.lake.reading import first_line, scan_table
from tasks.lake.table_schema import added_columns, rewritten_columns, to_arrow

PLAIN_KEY = re.compile(r"[A-Za-z0-9_.:-]{1,200}")  # may stand in a predicate without escaping
LEAST_FREE_BYTES = 4_000_000  # for a commit
COMMIT_TRIES = 12  # concurrent writers conflict and try again on the new version
ACTION = "_action"  # column of a change's source: end, revive, delete or insert
# Tombstones of the runner: the row was right for its settings and input, and may be wanted again.
SUPERSEDED = "superseded by a newer run"
INPUT_GONE = "its input is gone"
REVIVABLE = (SUPERSEDED, INPUT_GONE)

Rows: TypeAlias = pl.DataFrame | pa.Table | Iterable[Mapping[str, Any]]
# Given the table as it is: rows to change, as key columns, `made_from`, `_action` and `tombstone` (the reason).
Find: TypeAlias = Callable[[pl.LazyFrame], pl.DataFrame]


class ConcurrentRun(LakeError):
    """Another run of the same stage has committed to the table since this one last looked."""


@dataclass(frozen=True)
class Commit:
    """Who writes: goes into the table's history, and makes a repeated write a no-op."""

    run_id: str
    batch: int
    stage: str = ""
    config_hash: str = ""
    code_version: str = ""
    input_versions: Mapping[str, int] = field(default_factory=dict)

    def properties(self, operation: str, count: int) -> CommitProperties:
        transactions = [Transaction(self.app_id(operation), self.batch)]
        if self.stage:
            transactions.append(Transaction(stage_app_id(self.stage), count))
        return CommitProperties(
            custom_metadata={
                "run_id": self.run_id,
                "batch": str(self.batch),
                "stage": self.stage,
                "config_hash": self.config_hash,
                "code_version": self.code_version,
                "input_versions": json.dumps(dict(self.input_versions), sort_keys=True),
            },
            app_transactions=transactions,
        )

    def app_id(self, operation: str) -> str:
        return f"{self.run_id}:{operation}"


@dataclass(frozen=True)
class Written:
    """A table after a write: its version, and how many commits the writing stage has made to it."""

    version: int
    count: int
    before: int  # the count the write found


class TableWrites(ABC):
    """The writing half of a lake."""

    def __init__(self) -> None:
        # By table and thread: following one is cheaper than opening.
        self._handles: dict[tuple[str, int], DeltaTable] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handles": {}}

    def _newest(self, name: str) -> DeltaTable:
        """The table at its newest version, made if there is none."""
        mine = (name, threading.get_ident())
        table = self._handles.get(mine)
        if table is not None:
            table.update_incremental()
            return table
        table = self._handles[mine] = self._open(name) or self._create(name)
        return table

    def _forget(self, name: str) -> None:
        """Drop this thread's handle after a write that failed; other threads are using theirs."""
        self._handles.pop((name, threading.get_ident()), None)

    @abstractmethod
    def _open(self, name: str, version: int | None = None) -> DeltaTable | None: ...

    @abstractmethod
    def _create(self, name: str) -> DeltaTable: ...

    @abstractmethod
    def _refuse_full_disk(self, name: str) -> None: ...

    @abstractmethod
    def _write_error(self, name: str, error: Exception) -> LakeError:
        """Why a table cannot be written, and what to do about it."""

    def stage_count(self, name: str, stage: str) -> Written:
        """The table's version now (-1: there is none) and the number of commits a stage has made to it."""
        table = self._open(name)
        if table is None:
            return Written(-1, 0, 0)
        count = _count(table, stage)
        return Written(table.version(), count, count)

    def upsert(self, name: str, rows: Rows, commit: Commit) -> int:
        """Insert rows or replace the live ones with the same key. Returns the version that holds them."""
        contract = contract_of(name)
        data = _as_arrow(contract, rows)
        _refuse_repeated_keys(contract, data)

        def merge(table: DeltaTable, properties: CommitProperties) -> None:
            (
                table.merge(
                    data,
                    predicate=f"{_same_key(contract, data)} AND target.tombstone IS NULL",
                    source_alias="source",
                    target_alias="target",
                    commit_properties=properties,
                )
                .when_matched_update_all()
                .when_not_matched_insert_all()
                .execute()
            )

        return self._write(name, data.num_rows, commit, "upsert", merge).version

    def append(self, name: str, rows: Rows, commit: Commit) -> int:
        """Add rows without looking for their keys; for logs whose keys are new by construction."""
        return self._append(name, rows, commit, None).version

    def append_new(self, name: str, rows: Rows, commit: Commit, expected: int) -> Written:
        """Add rows of items the stage has not written yet, or ConcurrentRun if its count is not the expected one."""
        return self._append(name, rows, commit, expected)

    def tombstone(self, name: str, keys: pl.DataFrame, why: str, commit: Commit) -> Written:
        """Mark rows as gone, with the reason: the live version of each key, and those that could be revived.

        They stay readable in `scan` and in older versions.
        """
        contract = contract_of(name)
        key_types = {n: contract.schema.field(n).type for n in contract.key}
        data = pa.table({n: keys[n].to_arrow().cast(t) for n, t in key_types.items()})
        now = datetime.now(UTC).isoformat()

        def mark(table: DeltaTable, properties: CommitProperties) -> None:
            (
                table.merge(
                    data,
                    predicate=f"{_same_key(contract, data)} AND ({_IS_LIVE} OR {_IS_REVIVABLE})",
                    source_alias="source",
                    target_alias="target",
                    commit_properties=properties,
                )
                .when_matched_update(
                    {
                        "tombstone": _quoted(why),
                        "run_id": _quoted(commit.run_id),
                        "written_at": f"cast('{now}' as timestamp)",
                    }
                )
                .execute()
            )

        return self._write(name, data.num_rows, commit, "tombstone", mark)

    def change(self, name: str, find: Find, rows: Rows, commit: Commit) -> Written:
        """End, revive or delete the versions that `find` names and insert rows, in one commit.

        `find` is queried again when another writer came first. An ended or revived row keeps its `run_id` and
        `written_at`: a revived row is the row that was made.
        """
        contract = contract_of(name)
        data = _as_arrow(contract, rows)
        _refuse_repeated_keys(contract, data)

        def apply(table: DeltaTable, properties: CommitProperties) -> None:
            changes = find(scan_table(table))
            if changes.is_empty():
                if data.num_rows:
                    write_deltalake(table, data, mode="append", commit_properties=properties)
                return
            source = _source(contract, changes, data)
            import pyarrow.compute as pc  # commands that read alone need not wait for it

            keys = source.filter(pc.not_equal(source[ACTION], "insert"))
            (
                table.merge(
                    source,
                    predicate=f"{_same_key(contract, keys)} AND source.{ACTION} <> 'insert' "
                    "AND coalesce(target.made_from, '') = coalesce(source.made_from, '')",
                    source_alias="source",
                    target_alias="target",
                    commit_properties=properties,
                )
                .when_matched_update({"tombstone": "source.tombstone"}, f"source.{ACTION} = 'end' AND {_IS_LIVE}")
                .when_matched_update({"tombstone": "NULL"}, f"source.{ACTION} = 'revive' AND {_IS_REVIVABLE}")
                .when_matched_delete(f"source.{ACTION} = 'delete'")
                .when_not_matched_insert(
                    {column: f"source.{column}" for column in contract.schema.names}, f"source.{ACTION} = 'insert'"
                )
                .execute()
            )

        return self._write(name, 1, commit, "change", apply)

    def _append(self, name: str, rows: Rows, commit: Commit, expected: int | None) -> Written:
        data = _as_arrow(contract_of(name), rows)

        def add(table: DeltaTable, properties: CommitProperties) -> None:
            write_deltalake(table, data, mode="append", commit_properties=properties)

        return self._write(name, data.num_rows, commit, "append", add, expected)

    def _write(
        self,
        name: str,
        rows: int,
        commit: Commit,
        operation: str,
        apply: Callable[[DeltaTable, CommitProperties], None],
        expected: int | None = None,
    ) -> Written:
        if rows == 0:
            return self.stage_count(name, commit.stage)
        for attempt in range(COMMIT_TRIES):
            try:
                table = self._newest(name)
                before, count = table.version(), _count(table, commit.stage)
                done = table.transaction_version(commit.app_id(operation))
                if done is not None and done >= commit.batch:
                    return Written(before, count, count)
                if expected is not None and count != expected:
                    raise ConcurrentRun(f"another run of {commit.stage} writes to '{name}' at the same time")
                self._refuse_full_disk(name)
                add_new_columns(table, name)
                apply(table, commit.properties(operation, count + 1))
                return Written(table.version(), count + (table.version() > before), count)
            except CommitFailedError:
                self._forget(name)
                if attempt == COMMIT_TRIES - 1:
                    raise LakeError(f"table '{name}' is written by too many others at once; run again") from None
                time.sleep(random.uniform(0.02, 0.1) * 2 ** min(attempt, 5))
            except (DeltaError, OSError) as error:
                self._forget(name)
                raise self._write_error(name, error) from error
        raise AssertionError("unreachable")


_IS_LIVE = "target.tombstone IS NULL"
_IS_REVIVABLE = f"target.tombstone IN ({', '.join(repr(why) for why in REVIVABLE)})"


def contract_of(name: str) -> Table:
    """A table's contract, or an error that lists the tables."""
    if name not in TABLES:
        raise LakeError(f"there is no table '{name}'; the tables are {', '.join(TABLES)}")
    return TABLES[name]


def stage_app_id(stage: str) -> str:
    return f"stage:{stage}"


def _count(table: DeltaTable, stage: str) -> int:
    return table.transaction_version(stage_app_id(stage)) or 0


def _as_arrow(contract: Table, rows: Rows) -> pa.Table:
    return rows if isinstance(rows, pa.Table) else to_arrow(contract, rows)


def _source(contract: Table, changes: pl.DataFrame, data: pa.Table) -> pa.Table:
    """What a change merges: rows to find, of which only key, digest and reason are given, and rows to insert."""
    schema = pa.schema([*(f.with_nullable(True) for f in contract.schema), pa.field(ACTION, pa.string())])
    table = changes.to_arrow()
    columns = [
        table[f.name].cast(f.type) if f.name in table.column_names else pa.nulls(table.num_rows, f.type) for f in schema
    ]
    inserted = data.append_column(ACTION, pa.repeat(pa.scalar("insert"), data.num_rows))
    return pa.concat_tables([pa.Table.from_arrays(columns, schema=schema), inserted.cast(schema)])


def _same_key(contract: Table, data: pa.Table) -> str:
    """Rows with the same key, within the range of the keys given: files that hold only others are not read.

    A writer of many rows in parts sorted by key then reads the table once, not once for every part.
    """
    import pyarrow.compute as pc

    terms = [f"target.{column} = source.{column}" for column in contract.key]
    for column in contract.key:
        ends = [str(end) for end in pc.min_max(data[column]).values()]
        if all(PLAIN_KEY.fullmatch(end) for end in ends) and pa.types.is_string(data[column].type):
            terms.append(f"target.{column} BETWEEN {_quoted(ends[0])} AND {_quoted(ends[1])}")
    return " AND ".join(terms)


def _refuse_repeated_keys(contract: Table, data: pa.Table) -> None:
    keys = data.select(list(contract.key))
    if keys.group_by(list(contract.key)).aggregate([]).num_rows != data.num_rows:
        raise LakeError(f"rows for table '{contract.name}' repeat a key ({', '.join(contract.key)}); nothing written")


def add_new_columns(table: DeltaTable, name: str) -> None:
    """Add what the contract has and the table has not; LakeError where other columns must be migrated first."""
    stored = pa.schema(table.schema().to_arrow())
    if changes := rewritten_columns(TABLES[name], stored):
        raise LakeError(
            f"table '{name}' was written by an earlier geofix ({', '.join(changes)}): run `geofix migrate`, "
            "with --dry-run to see what it does"
        )
    if missing := added_columns(TABLES[name], stored):
        extra = Schema.from_arrow(pa.schema([f.with_nullable(True) for f in missing]))
        table.alter.add_columns(list(extra.fields))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def no_space(name: str, where: str) -> LakeUnwritable:
    return LakeUnwritable(
        f"no space left on the disk of lake '{where}' while writing '{name}'; free some and run again"
    )


def write_error(name: str, where: str, error: BaseException) -> LakeError:
    message = str(error)
    if getattr(error, "errno", None) == 28 or "os error 28" in message or "No space left" in message or is_full(where):
        return no_space(name, where)
    return LakeUnwritable(f"table '{name}' in {where} cannot be written: {first_line(error)}")


def is_full(where: str) -> bool:
    """Whether the disk of a local lake is: delta-rs may say no more than "Generic LocalFileSystem error"."""
    try:
        return shutil.disk_usage(where).free < LEAST_FREE_BYTES
    except OSError:  # not a folder of this machine
        return False
