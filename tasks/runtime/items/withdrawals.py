"""Withdrawn pictures leave the tables: at once when a person withdraws, and in each commit of a run that goes on.

A withdrawal writes its rule before it ends rows. A commit reads the rules after it has written rows: either it sees
the rule and ends what it wrote, or the withdrawal comes later and sees those rows. What a killed run left in between
is ended by maintenance, or by the same withdrawal said again.
"""

import re
from collections.abc import Collection, Iterable, Mapping

import polars as pl
import pyarrow as pa

from schemas.tables import TABLES
from tasks.lake import Commit, Lake
from tasks.lake.image_store import EXTENSIONS
from tasks.lake.withdrawn import REASON, Withdrawn
from tasks.runtime.calls import forget_calls

STAGE = "review.withdraw"  # writes these tombstones, whichever run ends the rows
FACTS = ("image_id", "source", "source_id", "sha256", "creator", "licence")  # of a picture, by which rules know it
_OF_ITEMS = ("rejects", "failures")  # name an item, whose id names the picture, and hold what came back about it


def is_about(item_id: str, image_ids: Collection[str]) -> bool:
    """Whether an item is one of these pictures, or is named after one."""
    return any(part in image_ids for part in re.split(r"[:|]", item_id))


def end_rows(
    lake: Lake, image_ids: Collection[str], why: str, commit: Commit, tables: Iterable[str] | None = None
) -> dict[str, int]:
    """End every row of the pictures, in the tables named (default: all); how many were live, by table."""
    ended = {}
    for name in lake.existing() if tables is None else tables:
        table = TABLES[name]
        if name in _OF_ITEMS:
            keys = lake.read(name, columns=[*table.key, "tombstone"])
            is_meant = pl.Series([is_about(item, image_ids) for item in keys["item_id"]], dtype=pl.Boolean)
            keys = keys.filter(is_meant)
        elif "image_id" in table.columns and name != "withdrawals":
            of_pictures = lake.scan(name).filter(pl.col("image_id").is_in(list(image_ids)))
            keys = lake.collect(name, of_pictures.select(*table.key, "tombstone"))
        else:
            continue
        if keys.height:
            lake.tombstone(name, keys.select(table.key).unique(), why, commit)
            ended[name] = keys["tombstone"].null_count()
    if tables is None:
        ended["calls"] = forget_calls(lake, lambda item_id: is_about(item_id, image_ids), why, commit)
    return {name: count for name, count in ended.items() if count}


def delete_files(lake: Lake, image_ids: Collection[str], files: Iterable[tuple[str, str]] = ()) -> int:
    """Delete the stored pictures and everything cut or resized from them, and `files` (sha256, extension).

    Returns how many files were there.
    """
    files = set(files)
    for name in lake.existing():
        if {"image_id", "sha256", "extension"} <= set(TABLES[name].columns):
            of_pictures = lake.scan(name).filter(pl.col("image_id").is_in(list(image_ids)))
            files |= set(lake.collect(name, of_pictures.select("sha256", "extension")).iter_rows())
    stored = sorted(file for file in files if file[0] and file[1] in EXTENSIONS)
    return sum(_delete(lake, sha256, extension) for sha256, extension in stored)


def _delete(lake: Lake, sha256: str, extension: str) -> bool:
    key = lake.images.key(sha256, extension)
    was_there = lake.blobs.exists(key)
    lake.blobs.delete(key)
    lake.blobs.local(key).unlink(missing_ok=True)  # the copy of a remote lake on this machine
    return was_there


class RunWithdrawals:
    """What a run has to leave out: the rules are read again whenever the table of withdrawals has changed."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._version = -1
        self._rules = Withdrawn()
        self._before = self._newest().image_ids

    def _newest(self) -> Withdrawn:
        version = self._lake.version("withdrawals")
        if version != self._version:
            self._version, self._rules = version, Withdrawn.of(self._lake)
        return self._rules

    def end_late(self, written: Mapping[str, pa.Table], commit: Commit) -> None:
        """End those of the rows just written, by table, that are of withdrawn pictures, and delete their files."""
        rules = self._newest()
        late: set[str] = set()
        for name, rows in written.items() if rules else ():
            facts = [column for column in FACTS if column in TABLES[name].columns]
            if "image_id" in facts:
                pictures = rows.select(facts).group_by(facts).aggregate([]).to_pylist()
                late |= {picture["image_id"] for picture in pictures if rules.why(picture)}
        if late:
            delete_files(self._lake, late)
            end_rows(self._lake, late, REASON, commit, [name for name in written if name not in _OF_ITEMS])

    def end_rest(self, commit: Commit) -> None:
        """End what else came of pictures withdrawn while the run went on, such as calls that were under way."""
        image_ids = self._newest().image_ids - self._before
        if image_ids:
            end_rows(self._lake, image_ids, REASON, commit)
            delete_files(self._lake, image_ids)


def end_withdrawn(lake: Lake, commit: Commit) -> int:
    """End what a killed run may have left of withdrawn pictures, in every table; how many rows were live."""
    image_ids = Withdrawn.of(lake).image_ids
    if not image_ids:
        return 0
    delete_files(lake, image_ids)
    return sum(end_rows(lake, image_ids, REASON, commit).values())
