"""The lake: Delta tables by contract, and the image store beside them. How tables are written is in `writes.py`."""

import json
import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from schemas.errors import LakeError
from schemas.tables import SYSTEM_COLUMNS, TABLES
from tasks.lake.image_store import ImageStore
from tasks.lake.names import Names
from tasks.lake.table_schema import check_stored_schema
from tasks.lake.writes import Commit, TableWrites, contract_of, first_line, no_space

LEAST_FREE_BYTES = 4_000_000  # for a commit
# Snapshots are read by version for years: the log that describes them must not expire.
TABLE_CONFIGURATION = {
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.enableExpiredLogCleanup": "false",
}


class Lake(TableWrites):
    """Tables and images under one folder."""

    def __init__(self, root: str | Path, *, read_only: bool = False) -> None:
        if "://" in str(root):
            raise LakeError(f"lake '{root}' is not a local folder; give a path such as ./lake")
        self.root = Path(root).expanduser().absolute()
        self._names = Names(self.root)
        self._checked: set[str] = set()  # ids of tables whose columns are known to fit the contract
        self.images = ImageStore(self.root / "images")
        if read_only:
            return  # a disk that is full or write-protected can still be looked at
        try:
            (self.root / "tables").mkdir(parents=True, exist_ok=True)
            probe = self.root / f".writable-{uuid.uuid4().hex}"
            probe.write_bytes(b"geofix")
            probe.unlink()
            self._names.ensure()
        except OSError as error:
            raise LakeError(
                f"lake '{self.root}' cannot be written: {error.strerror or error}; choose another with --lake"
            ) from error

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
        return _conform(pl.scan_delta(table), name)

    def read(self, name: str, version: int | None = None, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """The live rows at a version (default: the newest)."""
        rows = self.scan(name, version).filter(pl.col("tombstone").is_null())
        if columns is not None:
            rows = rows.select(columns)
        return self._guard(name, rows.collect)

    def history(self, name: str, limit: int | None = None) -> list[dict[str, Any]]:
        """The table's commits, newest first, with the metadata each writer gave."""
        table = self._open(name)
        return [] if table is None else table.history(limit)

    def existing(self) -> list[str]:
        """Names of the tables that hold at least one commit, in the contract's order."""
        return [name for name in TABLES if DeltaTable.is_deltatable(str(self._path(name)))]

    # upkeep ----------------------------------------------------------------------------------------------

    def compact(self, name: str) -> dict[str, Any]:
        """Merge small files into larger ones; older versions stay readable."""
        table = self._open(name)
        return {} if table is None else table.optimize.compact()

    def vacuum(self, name: str, retention_hours: int = 168) -> list[str]:
        """Delete files no version needs that is newer than the retention or named by a snapshot."""
        table = self._open(name)
        if table is None:
            return []
        named = self.snapshot_versions(name)
        return table.vacuum(
            retention_hours=retention_hours,
            dry_run=False,
            enforce_retention_duration=False,
            keep_versions=sorted({*named, table.version()}),
        )

    def snapshot_versions(self, name: str) -> list[int]:
        """Versions of a table that a snapshot names, whatever its approval."""
        found = set()
        for text in self.scan("snapshots").select("table_versions_json").collect()["table_versions_json"]:
            version = json.loads(text).get(name, -1)
            if version >= 0:
                found.add(version)
        return sorted(found)

    # inside ----------------------------------------------------------------------------------------------

    def _path(self, name: str) -> Path:
        return self.root / "tables" / contract_of(name).name

    def _where(self) -> str:
        return str(self.root)

    def _open(self, name: str, version: int | None = None) -> DeltaTable | None:
        path = self._path(name)
        if version is not None and version < 0:
            return None
        try:
            table = DeltaTable(str(path), version=version)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise LakeError(f"table '{name}' in {self.root} cannot be read: {first_line(error)}") from error
        table_id = str(table.metadata().id)
        if table_id not in self._checked:  # once: opening a table is frequent, and columns are only ever added
            check_stored_schema(TABLES[name], pa.schema(table.schema().to_arrow()), path)
            self._checked.add(table_id)
        return table

    def _create(self, name: str) -> DeltaTable:
        path = self._path(name)
        return DeltaTable.create(
            str(path), schema=TABLES[name].schema, mode="ignore", name=name, configuration=TABLE_CONFIGURATION
        )

    def _refuse_full_disk(self, name: str) -> None:
        # The library that writes tables ends in a panic there, and prints a page of it.
        if shutil.disk_usage(self.root).free < LEAST_FREE_BYTES:
            raise no_space(name, self._where())

    def _guard(self, name: str, collect: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        try:
            return collect()
        except (OSError, DeltaError, pl.exceptions.ComputeError) as error:
            raise LakeError(f"table '{name}' in {self.root} cannot be read: {first_line(error)}") from error


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


__all__ = ["SYSTEM_COLUMNS", "Commit", "Lake"]
