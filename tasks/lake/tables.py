"""The lake: Delta tables by contract, and the image store beside them.

Every write is one Delta commit that carries its run, batch, configuration hash, code version and input
versions. A commit of the same run and batch is made once, however often it is asked for.
"""

import json
import random
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from schemas.errors import LakeError, LakeUnwritable
from schemas.tables import SYSTEM_COLUMNS, TABLES, Table
from tasks.lake.blobs import Blobs, LocalBlobs
from tasks.lake.image_store import ImageStore
from tasks.lake.location import Location
from tasks.lake.names import Names
from tasks.lake.reading import check_files, reading
from tasks.lake.state import state_folder
from tasks.lake.table_schema import check_stored_schema, to_arrow

LEAST_FREE_BYTES = 4_000_000  # for a commit
PLAIN_KEY = re.compile(r"[A-Za-z0-9_.:-]{1,200}")  # stands in a predicate as it is, whoever parses it
COMMIT_TRIES = 12  # concurrent writers conflict and try again on the new version
# Snapshots are read by version for years: the log that describes them must not expire.
TABLE_CONFIGURATION = {
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.enableExpiredLogCleanup": "false",
}


@dataclass(frozen=True)
class Commit:
    """Who writes: goes into the table's history, and makes a repeated write a no-op."""

    run_id: str
    batch: int
    stage: str = ""
    config_hash: str = ""
    code_version: str = ""
    input_versions: Mapping[str, int] = field(default_factory=dict)

    def properties(self, operation: str) -> CommitProperties:
        return CommitProperties(
            custom_metadata={
                "run_id": self.run_id,
                "batch": str(self.batch),
                "stage": self.stage,
                "config_hash": self.config_hash,
                "code_version": self.code_version,
                "input_versions": json.dumps(dict(self.input_versions), sort_keys=True),
            },
            app_transactions=[Transaction(self.app_id(operation), self.batch)],
        )

    def app_id(self, operation: str) -> str:
        return f"{self.run_id}:{operation}"


class Lake:
    """Tables, images and other blobs at one location, and the local state that belongs to them."""

    def __init__(self, location: str | Path | Location, *, read_only: bool = False, state: Path | None = None) -> None:
        self._location = Location.parse(location)
        self.state = state or state_folder(self._location)  # locks, budgets, spools, logs: always a local folder
        self.blobs = open_blobs(self._location, self.state)
        self._names = Names(self.blobs)
        self.images = ImageStore(self.blobs)
        if read_only:
            return  # a disk that is full or write-protected can still be looked at
        try:
            if self._location.folder is None:
                self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
            else:
                (self._location.folder / "tables").mkdir(parents=True, exist_ok=True)
            probe = f".writable-{uuid.uuid4().hex}"
            self.blobs.put(probe, b"geofix")
            self.blobs.delete(probe)
            self._names.ensure()
        except (OSError, LakeUnwritable) as error:
            why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            raise LakeError(f"lake '{self.uri}' cannot be written: {why}; choose another with --lake") from error

    @property
    def uri(self) -> str:
        """The lake's address: a path or a URI."""
        return self._location.uri

    @property
    def root(self) -> Path:
        """The folder of a local lake."""
        if self._location.folder is None:
            raise LakeError(f"lake '{self.uri}' is not a local folder")
        return self._location.folder

    def tables_uri(self, name: str) -> str:
        """Where a table lies."""
        return self._location.child(f"tables/{_contract(name).name}")

    def is_there(self) -> bool:
        """Whether anything was ever written to this lake."""
        return next(iter(self.blobs.list("tables")), None) is not None

    def name(self, *parts: str) -> str:
        """A name for what these parts identify, which tells nothing about them without this lake."""
        return self._names.name(*parts)

    # reading ---------------------------------------------------------------------------------------------

    def version(self, name: str) -> int:
        """The table's newest version, or -1 while it does not exist."""
        table = self._open(name)
        return -1 if table is None else table.version()

    def scan(self, name: str, version: int | None = None) -> pl.LazyFrame:
        """All rows, tombstones included, at a version (default: the newest)."""
        table = self._open(name, version)
        if table is None:
            return _empty(name).lazy()
        if self.blobs.is_local:
            check_files(name, table, self.blobs, is_newest=version is None)
        return _conform(pl.scan_delta(table), name)

    def collect(self, name: str, rows: pl.LazyFrame) -> pl.DataFrame:
        """What a query over `scan` gives; a damaged file is an error that names it."""
        with reading(name, lambda: self._open(name), self.blobs):
            return rows.collect()

    def read(self, name: str, version: int | None = None, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """The live rows at a version (default: the newest)."""
        rows = self.scan(name, version).filter(pl.col("tombstone").is_null())
        if columns is not None:
            rows = rows.select(columns)
        return self.collect(name, rows)

    def history(self, name: str, limit: int | None = None) -> list[dict[str, Any]]:
        """The table's commits, newest first, with the metadata each writer gave."""
        table = self._open(name)
        return [] if table is None else table.history(limit)

    def existing(self) -> list[str]:
        """Names of the tables that hold at least one commit, in the contract's order."""
        return [
            name for name in TABLES if DeltaTable.is_deltatable(self.tables_uri(name), self._location.storage_options())
        ]

    # writing ---------------------------------------------------------------------------------------------

    def upsert(self, name: str, rows: pl.DataFrame | Iterable[Mapping[str, Any]], commit: Commit) -> int:
        """Insert rows or replace those with the same key. Returns the version that holds them."""
        contract = _contract(name)
        data = to_arrow(contract, rows)
        _refuse_repeated_keys(contract, data)

        def merge(table: DeltaTable) -> None:
            (
                table.merge(
                    data,
                    predicate=_key_predicate(contract, data),
                    source_alias="source",
                    target_alias="target",
                    commit_properties=commit.properties("upsert"),
                )
                .when_matched_update_all()
                .when_not_matched_insert_all()
                .execute()
            )

        return self._write(name, data.num_rows, commit, "upsert", merge)

    def append(self, name: str, rows: pl.DataFrame | Iterable[Mapping[str, Any]], commit: Commit) -> int:
        """Add rows without looking for their keys; for logs whose keys are new by construction."""
        from deltalake import write_deltalake

        data = to_arrow(_contract(name), rows)

        def add(table: DeltaTable) -> None:
            write_deltalake(table, data, mode="append", commit_properties=commit.properties("append"))

        return self._write(name, data.num_rows, commit, "append", add)

    def tombstone(self, name: str, keys: pl.DataFrame, why: str, commit: Commit) -> int:
        """Mark rows as gone, with the reason. They stay readable in `scan` and in older versions."""
        contract = _contract(name)
        key_types = {n: contract.schema.field(n).type for n in contract.key}
        data = pa.table({n: keys[n].to_arrow().cast(t) for n, t in key_types.items()})
        now = datetime.now(UTC).isoformat()

        def mark(table: DeltaTable) -> None:
            (
                table.merge(
                    data,
                    predicate=_key_predicate(contract, data),
                    source_alias="source",
                    target_alias="target",
                    commit_properties=commit.properties("tombstone"),
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

    def snapshot_versions(self, name: str) -> list[int]:
        """Versions of a table that a snapshot names, whatever its approval."""
        found = set()
        for text in self.scan("snapshots").select("table_versions_json").collect()["table_versions_json"]:
            version = json.loads(text).get(name, -1)
            if version >= 0:
                found.add(version)
        return sorted(found)

    def delta(self, name: str) -> DeltaTable | None:
        """The Delta table itself, for maintenance; None while it does not exist."""
        return self._open(name)

    # inside ----------------------------------------------------------------------------------------------

    def _open(self, name: str, version: int | None = None) -> DeltaTable | None:
        uri = self.tables_uri(name)
        if version is not None and version < 0:
            return None
        try:
            table = DeltaTable(uri, version=version, storage_options=self._location.storage_options())
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise LakeError(f"table '{name}' in {self.uri} cannot be read: {_first_line(error)}") from error
        check_stored_schema(TABLES[name], pa.schema(table.schema().to_arrow()), uri)
        return table

    def _create(self, name: str) -> DeltaTable:
        return DeltaTable.create(
            self.tables_uri(name),
            schema=TABLES[name].schema,
            mode="ignore",
            name=name,
            configuration=TABLE_CONFIGURATION,
            storage_options=self._location.storage_options(),
        )

    def _write(self, name: str, count: int, commit: Commit, operation: str, apply: Callable[[DeltaTable], None]) -> int:
        if count == 0:
            return self.version(name)
        for attempt in range(COMMIT_TRIES):
            try:
                table = self._open(name) or self._create(name)
                done = table.transaction_version(commit.app_id(operation))
                if done is not None and done >= commit.batch:
                    return table.version()
                self._refuse_full_disk(name)
                self._add_new_columns(table, name)
                apply(table)
                return table.version()
            except CommitFailedError:
                if attempt == COMMIT_TRIES - 1:
                    raise LakeError(f"table '{name}' is written by too many others at once; run again") from None
                time.sleep(random.uniform(0.02, 0.1) * 2 ** min(attempt, 5))
            except (DeltaError, OSError) as error:
                raise _write_error(name, self.uri, error) from error
        raise AssertionError("unreachable")

    def _refuse_full_disk(self, name: str) -> None:
        # The library that writes tables ends in a panic there, and prints a page of it.
        folder = self._location.folder
        if folder is not None and shutil.disk_usage(folder).free < LEAST_FREE_BYTES:
            raise _no_space(name, self.uri)

    def _add_new_columns(self, table: DeltaTable, name: str) -> None:
        stored = {f.name for f in table.schema().fields}
        missing = [f for f in TABLES[name].schema if f.name not in stored]
        if missing:
            from deltalake import Schema

            extra = Schema.from_arrow(pa.schema([f.with_nullable(True) for f in missing]))
            table.alter.add_columns(list(extra.fields))


def open_blobs(location: Location, state: Path) -> Blobs:
    """The blobs of a lake."""
    if location.folder is not None:
        return LocalBlobs(location.folder)
    from tasks.lake.object_blobs import ObjectBlobs  # a local lake does without the client

    return ObjectBlobs(location, state / "copies")


def _contract(name: str) -> Table:
    if name not in TABLES:
        raise LakeError(f"there is no table '{name}'; the tables are {', '.join(TABLES)}")
    return TABLES[name]


def _empty(name: str) -> pl.DataFrame:
    frame = pl.from_arrow(TABLES[name].schema.empty_table())
    assert isinstance(frame, pl.DataFrame)
    return frame


def _conform(rows: pl.LazyFrame, name: str) -> pl.LazyFrame:
    """Rows with exactly the contract's columns: an older version may lack newer ones."""
    wanted = _empty(name).schema
    have = rows.collect_schema().names()
    return rows.select(
        pl.col(column) if column in have else pl.lit(None, dtype=dtype).alias(column)
        for column, dtype in wanted.items()
    )


def _key_predicate(contract: Table, data: pa.Table) -> str:
    """Rows with the same key, and from where to where keys go: files that hold only others are not read for them.

    Who writes much in parts sorted by key then reads what is there once, not once for every part.
    """
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


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _no_space(name: str, lake: str) -> LakeUnwritable:
    return LakeUnwritable(f"no space left on the disk of lake '{lake}' while writing '{name}'; free some and run again")


def _write_error(name: str, lake: str, error: BaseException) -> LakeError:
    text = _first_line(error)
    if getattr(error, "errno", None) == 28 or "os error 28" in text or "No space left" in text:
        return _no_space(name, lake)
    return LakeUnwritable(f"table '{name}' in {lake} cannot be written: {text}")


__all__ = ["SYSTEM_COLUMNS", "Commit", "Lake"]
