"""Reading tables whose files may be damaged: one error that names the table and the file.

The libraries end in a panic on a file that is shorter than its table's log says. A Rust panic prints a page to stderr
and reaches Python as a BaseException, so the ends of local files are checked before they are handed over.
"""

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from schemas.errors import LakeError
from tasks.lake.blobs import BlobMissing, Blobs

MAGIC = b"PAR1"  # the last bytes of every Parquet file
FOOTER = 8  # length of the metadata, magic


class DamagedTable(LakeError):
    """A file of a table is missing or does not hold what was written."""


def file_keys(name: str, table: DeltaTable) -> list[str]:
    """The keys of the Parquet files of a table's version, among the lake's blobs; all lie in the table's own folder."""
    folder = unquote(table.table_uri.removeprefix("file://").rstrip("/"))
    keys = []
    for uri in map(unquote, table.file_uris()):
        file = uri.removeprefix(f"{folder}/")
        if "/" in unquote(file):
            raise DamagedTable(f"table '{name}': its log names '{file[:120]}', which is not a file of its own folder")
        keys.append(f"tables/{name}/{file}")
    return keys


def scan_table(table: DeltaTable) -> pl.LazyFrame:
    """All rows of an open table.

    delta-rs gives the files of a local table percent-encoded ('my%20lake'), and Polars opens these names as they are;
    pyarrow's reader, which is a little slower, asks delta-rs for the files' content.
    """
    return pl.scan_delta(table, use_pyarrow=table.table_uri.startswith("file:") and "%" in table.table_uri)


def check_files(name: str, table: DeltaTable, blobs: Blobs, is_newest: bool = True) -> None:
    """Refuse a table on local disk one of whose files is missing or cut short. Costs one small read a file."""
    for key in file_keys(name, table):
        path = blobs.local(key)
        try:
            with path.open("rb") as file:
                file.seek(-min(FOOTER, os.fstat(file.fileno()).st_size), os.SEEK_END)
                end = file.read(FOOTER)
        except OSError as error:
            if not is_newest and isinstance(error, FileNotFoundError):
                raise LakeError(
                    f"version {table.version()} of table '{name}' cannot be read any more: `geofix maintain` deleted "
                    "its files, since no snapshot names it"
                ) from error
            raise damaged(name, path, error.strerror or str(error)) from error
        if len(end) < FOOTER or end[4:] != MAGIC:
            raise damaged(name, path, "it does not end like a Parquet file")


@contextlib.contextmanager
def reading(name: str, table: Callable[[], DeltaTable | None], blobs: Blobs) -> Iterator[None]:
    """Turn what the libraries raise, panics included, into an error that names the table and, if found, the file."""
    try:
        yield
    except (OSError, DeltaError, pl.exceptions.PolarsError) as error:
        raise _named(name, table(), blobs, error) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # pyo3 exports no class for it
            raise
        raise _named(name, table(), blobs, error) from None


def damaged_files(
    name: str, table: DeltaTable, blobs: Blobs, only: Collection[str] | None = None
) -> Iterator[tuple[str, str]]:
    """The files of a table that cannot be read whole, each with the reason; by default all are read."""
    for key in file_keys(name, table):
        if only is not None and key not in only:
            continue
        try:
            for _ in pq.ParquetFile(pa.BufferReader(blobs.get(key))).iter_batches():
                pass
        except BlobMissing:
            yield blobs.uri(key), "it is missing"
        except (OSError, pa.ArrowException, LakeError) as error:
            yield blobs.uri(key), first_line(error)


def damaged_commits(name: str, blobs: Blobs) -> Iterator[tuple[str, str]]:
    """The commits of a table's log that are not what a writer leaves, each with the reason."""
    for blob in blobs.list(f"tables/{name}/_delta_log"):
        if blob.key.endswith(".json"):
            lines = blobs.get(blob.key).splitlines()
            if not lines:  # read as a commit that changed nothing
                yield blobs.uri(blob.key), "it is empty"
            elif not all(map(_is_json, lines)):
                yield blobs.uri(blob.key), "it is not JSON"


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _named(name: str, table: DeltaTable | None, blobs: Blobs, error: BaseException) -> LakeError:
    damage = None if table is None else next(damaged_files(name, table, blobs), None)
    if damage is not None:
        return damaged(name, *damage)
    return LakeError(f"table '{name}' cannot be read: {first_line(error)}")


def damaged(name: str, path: Path | str, why: str) -> DamagedTable:
    """The error for a table with such a file."""
    return DamagedTable(
        f"table '{name}': file {path} is damaged ({why}); restore it from a backup, or read an older version with "
        "`geofix show --version`; `geofix verify` checks the whole lake"
    )


def first_line(error: BaseException) -> str:
    """The first line of an error: the libraries add dumps below it."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def newest_versions(rows: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """One row a key, with `tombstone` and `written_at` given: the live one, else the one written last."""
    return rows.sort(pl.col("tombstone").is_null(), "written_at", descending=True, nulls_last=True).unique(
        list(key), keep="first", maintain_order=True
    )
