"""Whether a lake is whole: tables readable, keys unique, references resolved, pictures and checkpoints there.

Every problem names its table and, where there is one, its row.
"""

import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from schemas.errors import LakeError
from schemas.tables import TABLES
from tasks.lake.blobs import BlobMissing
from tasks.lake.reading import damaged_commits, damaged_files, file_keys
from tasks.lake.tables import Lake

# A column of this name, in any table, must be found in this key column of this table. Tombstoned rows count: what
# follows a snapshot may outlive the live row.
REFERENCES: Mapping[str, tuple[str, str]] = {
    "place_id": ("places", "place_id"),
    "image_id": ("images", "image_id"),
    "trajectory_id": ("trajectories", "trajectory_id"),
    "snapshot_id": ("snapshots", "snapshot_id"),
    "parent_id": ("models", "model_id"),
}
STORED = r"sha256:([0-9a-f]{64})\.(jpg|png)"  # a picture named by a stored message
READERS = 8
PICTURES = pl.Schema(
    {"sha256": pl.String, "extension": pl.String, "bytes": pl.Int64, "table": pl.String, "row_id": pl.String}
)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong."""

    table: str
    row_id: str  # empty: the table itself
    what: str


def verify(lake: Lake, quick: bool = False) -> Iterator[Problem]:
    """What is wrong with the lake, as it is found. `quick` looks whether files exist, and reads none of them.

    A table that cannot be read is a problem like any other: what does not depend on it is still checked.
    """
    tables: list[str] = []
    for name in lake.existing():
        tables.append(name)
        yield from _reading(tables, name, _files(lake, name, quick))
        if name in tables:
            yield from _reading(tables, name, _keys(lake, name), is_damage=False)
    yield from _names_key(lake, tables)
    absent = set(TABLES) - set(lake.existing())
    for name in list(tables):
        for column, (target, key) in REFERENCES.items():
            if column in TABLES[name].columns and (name, column) != (target, key) and target in (*tables, *absent):
                missing = _references(lake, name, column, target, key)
                yield from _reading(tables, name, missing, is_damage=False)
    frames = [pl.DataFrame(schema=PICTURES)]
    for name in list(tables):
        yield from _reading(tables, name, _named_pictures(lake, name, frames), is_damage=False)
    yield from _pictures(lake, pl.concat(frames), quick)
    if "models" in tables:
        yield from _reading(tables, "models", _checkpoints(lake), is_damage=False)


def _reading(tables: list[str], name: str, problems: Iterator[Problem], is_damage: bool = True) -> Iterator[Problem]:
    """The problems; one more if the table cannot be read. A damaged table is taken off the list of whole ones."""
    damaged = False
    try:
        for problem in problems:
            damaged |= is_damage
            yield problem
    except LakeError as error:
        damaged = True
        yield Problem(name, "", str(error))
    if damaged and name in tables:
        tables.remove(name)


def _files(lake: Lake, name: str, quick: bool) -> Iterator[Problem]:
    """Commits, and files of the newest version and of those that snapshots name, each looked at once."""
    for where, why in damaged_commits(name, lake.blobs):
        yield Problem(name, "", f"commit {where} is damaged: {why}")
    seen: set[str] = set()
    for version in (None, *_named_versions(lake, name)):
        told = "" if version is None else f" (needed by a snapshot, version {version})"
        try:
            table = lake.delta(name, version)
        except LakeError as error:
            yield Problem(name, "", f"{error}{told}")
            continue
        if table is None:
            continue
        new = set(file_keys(name, table)) - seen
        seen |= new
        for where, why in _resized(lake, name, table, new) if quick else damaged_files(name, table, lake.blobs, new):
            yield Problem(name, "", f"file {where} is damaged: {why}{told}")


def _named_versions(lake: Lake, name: str) -> list[int]:
    try:
        return lake.snapshot_versions(name)
    except LakeError:
        return []  # the table of snapshots is damaged, which is a problem of its own


def _resized(lake: Lake, name: str, table: DeltaTable, keys: set[str]) -> Iterator[tuple[str, str]]:
    """Files that are missing or have another size than the table's log says."""
    added = pa.table(table.get_add_actions(flatten=True)).select(["path", "size_bytes"]).to_pydict()
    for path, size in zip(added["path"], added["size_bytes"], strict=True):
        key = f"tables/{name}/{unquote(path)}"
        blob = lake.blobs.find(key) if key in keys else None
        if key in keys and (blob is None or blob.size != size):
            why = "it is missing" if blob is None else f"it has {blob.size} bytes, expected {size}"
            yield lake.blobs.uri(key), why


def _keys(lake: Lake, name: str) -> Iterator[Problem]:
    rows = lake.read(name, columns=list(TABLES[name].key))
    repeated = rows.filter(rows.is_duplicated()).unique(maintain_order=True)
    for key in repeated.iter_rows():
        yield Problem(name, _id(key), "several live rows have this key")


def _names_key(lake: Lake, tables: list[str]) -> Iterator[Problem]:
    if "images" in tables:
        try:
            lake.name("verify")
        except LakeError as error:
            yield Problem("images", "", str(error))


def _references(lake: Lake, name: str, column: str, target: str, key: str) -> Iterator[Problem]:
    own = TABLES[name].key
    rows = lake.read(name, columns=list(dict.fromkeys((*own, column)))).filter(pl.col(column) != "")
    known = lake.collect(target, lake.scan(target).select(pl.col(key).alias(column)).unique())
    for row in rows.join(known, on=column, how="anti").iter_rows(named=True):
        yield Problem(name, _id(tuple(row[k] for k in own)), f"{column} {row[column]} is not in table {target}")


def _named_pictures(lake: Lake, name: str, frames: list[pl.DataFrame]) -> Iterator[Problem]:
    """Adds to `frames` the pictures of a table's live rows, and those that its stored messages name."""
    columns, key = TABLES[name].columns, pl.concat_str(*TABLES[name].key, separator=" ")
    if {"sha256", "extension", "bytes"} <= columns.keys():
        rows = lake.read(name, columns=[*TABLES[name].key, "sha256", "extension", "bytes"])
        own = rows.select("sha256", pl.col("extension").fill_null("jpg"), "bytes", table=pl.lit(name), row_id=key)
        frames.append(own.cast(PICTURES))
    if "messages_json" in columns:
        rows = lake.read(name, columns=[*TABLES[name].key, "messages_json"])
        named = rows.select(pl.col("messages_json").str.extract_all(STORED).alias("named"), row_id=key)
        parts = named.explode("named").drop_nulls().with_columns(pl.col("named").str.extract_groups(STORED))
        told = parts.select(
            sha256=pl.col("named").struct.field("1"),
            extension=pl.col("named").struct.field("2"),
            bytes=pl.lit(None, dtype=pl.Int64),
            table=pl.lit(name),
            row_id="row_id",
        )
        frames.append(told.cast(PICTURES))
    yield from ()


def _pictures(lake: Lake, named: pl.DataFrame, quick: bool) -> Iterator[Problem]:
    """Stored pictures that are missing or not what their rows say."""
    wanted = named.sort("bytes", nulls_last=True).unique(["sha256", "extension"], keep="first")
    wanted = wanted.sort("sha256")
    if quick:
        stored = {PurePosixPath(blob.key).name: blob.size for blob in lake.images.list()}
        for row in wanted.iter_rows(named=True):
            size = stored.get(f"{row['sha256']}.{row['extension']}")
            if size is None or (row["bytes"] is not None and size != row["bytes"]):
                why = "is missing" if size is None else f"has {size} bytes, expected {row['bytes']}"
                yield Problem(row["table"], row["row_id"], f"picture {row['sha256']}.{row['extension']} {why}")
        return
    with ThreadPoolExecutor(READERS) as pool:
        for part in wanted.iter_slices(1000):  # a bounded number under way
            yield from (problem for problem in pool.map(lambda row: _picture(lake, row), part.to_dicts()) if problem)


def _picture(lake: Lake, row: Mapping[str, str | int | None]) -> Problem | None:
    """What is wrong with one stored picture."""
    sha256, extension, size = str(row["sha256"]), str(row["extension"]), row["bytes"]

    def problem(why: str) -> Problem:
        return Problem(str(row["table"]), str(row["row_id"]), f"picture {sha256}.{extension} {why}")

    try:
        data = lake.blobs.get(lake.images.key(sha256, extension))
    except BlobMissing:
        return problem("is missing")
    except LakeError as error:
        return problem(f"cannot be read: {error}")
    if size is not None and len(data) != size:
        return problem(f"has {len(data)} bytes, expected {size}")
    return None if hashlib.sha256(data).hexdigest() == sha256 else problem("does not match its sha256")


def _checkpoints(lake: Lake) -> Iterator[Problem]:
    for model_id, checkpoint in lake.read("models", columns=["model_id", "checkpoint"]).iter_rows():
        if next(iter(lake.blobs.list(checkpoint)), None) is None:
            yield Problem("models", model_id, f"checkpoint {lake.blobs.uri(checkpoint)} is missing")


def _id(key: tuple[object, ...]) -> str:
    return " ".join(map(str, key))
