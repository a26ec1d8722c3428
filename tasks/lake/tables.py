"""The lake: Delta tables by contract, and the image store beside them. How tables are written is in `writes.py`."""

import errno
import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from schemas.errors import LakeError, LakeUnwritable
from schemas.tables import SYSTEM_COLUMNS, TABLES
from tasks.lake.blobs import Blobs, LocalBlobs
from tasks.lake.image_store import ImageStore
from tasks.lake.location import Location
from tasks.lake.names import KEY_FILE, Names
from tasks.lake.reading import check_files, damaged, damaged_commits, first_line, reading, scan_table
from tasks.lake.state import keep_private, state_folder
from tasks.lake.table_schema import check_stored_schema, stored_name
from tasks.lake.writes import Commit, TableWrites, contract_of, is_full, no_space, write_error

# Snapshots are read by version for years: the log that describes them must not expire.
TABLE_CONFIGURATION = {
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.enableExpiredLogCleanup": "false",
    "delta.checkpointInterval": "20",  # opening a table reads the commits since the last checkpoint one by one
}


class Lake(TableWrites):
    """Tables, images and other blobs at one location, and the local state that belongs to them."""

    def __init__(self, location: str | Path | Location, *, read_only: bool = False, state: Path | None = None) -> None:
        super().__init__()
        self._location = Location.parse(location)
        self.state = state or state_folder(self._location)  # locks, budgets, spools, logs: always a local folder
        self.blobs = open_blobs(self._location, self.state)
        self.images = ImageStore(self.blobs)
        self._names = Names(self.blobs)
        self._checked: set[str] = set()  # ids of tables whose columns are known to fit the contract
        if not read_only:  # a disk that is full or write-protected can still be looked at
            self._refuse_unwritable()
        keep_private(self.state)

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
        return self._location.child(f"tables/{contract_of(name).name}")

    def is_there(self) -> bool:
        """Whether anything was ever written to this lake."""
        if self._location.folder is not None:
            return (self._location.folder / "tables").is_dir()
        try:
            return next(iter(self.blobs.list("tables")), None) is not None
        except LakeError as error:
            raise LakeError(f"lake '{self.uri}' cannot be read: {self._problem(error)}") from error

    def is_full(self) -> bool:
        """Whether the disk of a local lake has no space left for a commit."""
        return self._location.folder is not None and is_full(str(self._location.folder))

    def name(self, *parts: str) -> str:
        """A name for what these parts identify, which tells nothing about them without this lake."""
        return self._names.name(*parts)

    def secret(self, purpose: str) -> bytes:
        """32 bytes that only this lake knows, the same each time."""
        return self._names.secret(purpose)

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
        return _conform(scan_table(table), name)

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
        options = self._location.storage_options()
        return [name for name in TABLES if DeltaTable.is_deltatable(self.tables_uri(name), options)]

    def snapshot_versions(self, name: str) -> list[int]:
        """Versions of a table that a snapshot names, whatever its approval."""
        versions = set()
        rows = self.collect("snapshots", self.scan("snapshots").select("table_versions_json"))
        for text in rows["table_versions_json"]:
            version = json.loads(text).get(name, -1)
            if version >= 0:
                versions.add(version)
        return sorted(versions)

    def delta(self, name: str, version: int | None = None) -> DeltaTable | None:
        """The Delta table itself, for maintenance; None while it does not exist."""
        return self._open(name, version)

    # inside ----------------------------------------------------------------------------------------------

    def _refuse_unwritable(self) -> None:
        try:
            if self._location.folder is not None:
                (self._location.folder / "tables").mkdir(parents=True, exist_ok=True)
            self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = f".writable-{uuid.uuid4().hex}"
            self.blobs.put(probe, b"geofix")
            self.blobs.delete(probe)
            self._names.ensure()
        except (OSError, LakeUnwritable) as error:
            raise LakeError(f"lake '{self.uri}' cannot be written: {self._problem(error)}") from error

    def _problem(self, error: OSError | LakeError) -> str:
        """Why the lake cannot be used, and what to do about it."""
        if isinstance(error, OSError) or self.blobs.is_local:
            cause = error if isinstance(error, OSError) else error.__cause__
            if getattr(cause, "errno", None) == errno.ENOSPC:
                return (
                    "no space left on its disk; free some (`geofix maintain` deletes what nothing needs) and run again"
                )
            return f"{getattr(cause, 'strerror', None) or error}; choose another with --lake"
        from tasks.lake.object_blobs import store_problem

        return store_problem(self._location, error.__cause__)

    def _write_error(self, name: str, error: Exception) -> LakeError:
        if refused := self._refused_by_store():
            return LakeUnwritable(f"table '{name}' in {self.uri} cannot be written: {refused}")
        return write_error(name, self.uri, error)

    def _refused_by_store(self) -> str | None:
        """Why an object store does not even say whether a small object is there; what delta-rs raises has no kinds."""
        if self.blobs.is_local:
            return None
        try:
            self.blobs.find(KEY_FILE)
        except LakeError as error:
            return self._problem(error)
        return None

    def _open(self, name: str, version: int | None = None) -> DeltaTable | None:
        uri = self.tables_uri(name)
        if version is not None and version < 0:
            return None
        try:
            table = DeltaTable(uri, version=version, storage_options=self._location.storage_options())
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise self._unreadable(name, error) from error
        table_id = str(table.metadata().id)
        if table_id not in self._checked:  # once: opening a table is frequent, and columns are only ever added
            check_stored_schema(TABLES[name], pa.schema(table.schema().to_arrow()), uri)
            self._checked.add(table_id)
        return table

    def _unreadable(self, name: str, error: Exception) -> LakeError:
        if refused := self._refused_by_store():
            return LakeError(f"table '{name}' in {self.uri} cannot be read: {refused}")
        for damage in damaged_commits(name, self.blobs):
            return damaged(name, *damage)
        return LakeError(f"table '{name}' in {self.uri} cannot be read: {first_line(error)}")

    def _create(self, name: str) -> DeltaTable:
        return DeltaTable.create(
            self.tables_uri(name),
            schema=TABLES[name].schema,
            mode="ignore",
            name=name,
            configuration=TABLE_CONFIGURATION,
            storage_options=self._location.storage_options(),
        )

    def _refuse_full_disk(self, name: str) -> None:
        # The library that writes tables ends in a panic there, and prints a page of it.
        if self.is_full():
            raise no_space(name, self.uri)


def open_blobs(location: Location, state: Path) -> Blobs:
    """The blobs of a lake."""
    if location.folder is not None:
        return LocalBlobs(location.folder)
    from tasks.lake.object_blobs import ObjectBlobs  # a local lake does without the client

    return ObjectBlobs(location, state / "copies")


def _empty(name: str) -> pl.DataFrame:
    return pl.DataFrame(schema=pl.Schema(TABLES[name].schema))  # of an empty Arrow table it would import pandas


def _conform(rows: pl.LazyFrame, name: str) -> pl.LazyFrame:
    """Rows with exactly the contract's columns: an older version may lack newer ones, or call them otherwise."""
    have = rows.collect_schema()

    def column(wanted: str, dtype: pl.DataType) -> pl.Expr:
        stored = stored_name(TABLES[name], wanted, have)
        if stored is None:
            return pl.lit(None, dtype=dtype).alias(wanted)
        expression = pl.col(stored) if have[stored] == dtype else pl.col(stored).cast(dtype)
        return expression.alias(wanted)

    return rows.select(column(wanted, dtype) for wanted, dtype in _empty(name).schema.items())


__all__ = ["SYSTEM_COLUMNS", "Commit", "Lake"]
