"""The rows of one stage in one table, in versions: appended when their item is new, exchanged when it is redone.

A row's version is its key and `made_from`. At most one version of a key is live. What a run knows of the table comes
from reading it once. The count of the stage's commits in the table tells whether that still holds: if another run of
the stage has written meanwhile, rows are exchanged instead of appended, and the table is read again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from schemas.errors import LakeError
from schemas.tables import TABLES
from tasks.lake import Commit, Lake
from tasks.lake.writes import ACTION, INPUT_GONE, REVIVABLE, SUPERSEDED, ConcurrentRun, Written
from tasks.runtime.items.outcome import REJECTED

SLICE = 100_000  # items changed in one commit: a change rewrites the files of their rows
TAKEN = "its key was taken by another item"

_LIVE = pl.col("tombstone").is_null()
_REVIVABLE = pl.col("tombstone").is_in(REVIVABLE).fill_null(False)
_DIGEST = pl.col("made_from").str.strip_prefix(REJECTED)


def hash_of(key: Sequence[str]) -> pl.Expr:
    """One hash a row, of text columns that together are its key. Holds within a process only."""
    return pl.concat_str(list(key), separator="\x1f").hash() if len(key) > 1 else pl.col(key[0]).hash()


class KeyHashes:
    """A growing set of keys as 64-bit hashes, 8 bytes each: sorted arrays, each at least twice as long as the next."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray[Any, np.dtype[np.uint64]]] = []

    def __bool__(self) -> bool:
        return bool(self._arrays)

    def add(self, hashes: pl.Series) -> None:
        """Take hashes in."""
        if len(hashes):
            self._arrays.append(np.sort(hashes.to_numpy()))
        while len(self._arrays) > 1 and 2 * len(self._arrays[-1]) > len(self._arrays[-2]):
            last = self._arrays.pop()
            self._arrays[-1] = np.sort(np.concatenate([self._arrays[-1], last]))

    def holds(self, hashes: pl.Series) -> pl.Series:
        """For each hash, whether it was taken in before."""
        order = np.argsort(hashes.to_numpy())  # looked up in order, neighbours are found in the same cache lines
        wanted = hashes.to_numpy()[order]
        held = np.zeros(len(wanted), dtype=bool)
        for array in self._arrays:
            place = np.minimum(np.searchsorted(array, wanted), len(array) - 1)
            held |= array[place] == wanted
        held_rows = np.empty_like(held)
        held_rows[order] = held
        return pl.Series(held_rows)


@dataclass
class StageTable:
    """What one run of a stage reads from and writes to one table."""

    lake: Lake
    name: str
    stage: str
    run_id: str
    # id and made_from of the run's input
    items: pl.DataFrame = field(default_factory=lambda: items_of([]).rename({"item_id": "id"}))
    _here: KeyHashes = field(default_factory=KeyHashes)  # of those of them that have a row, tombstones included
    _version: int = -1  # of the last reading
    _count: int = 0  # commits of the stage in the table, as of the last reading or write
    _before: KeyHashes | None = None  # of the keys that were live at the last reading
    _written: KeyHashes = field(default_factory=KeyHashes)  # of the keys this run has written

    @property
    def key(self) -> list[str]:
        return list(TABLES[self.name].key)

    def read_rows(self, items: pl.DataFrame) -> tuple[pl.DataFrame, int]:
        """The stage's rows of these items (`id`, `made_from`), and how many live rows it has of other items.

        Columns: item (its place among the items), same (made as the item is wanted now), is_rejected, live, revivable.
        No text: a run over ten million finished items would hold gigabytes of it.
        """
        now = self.lake.stage_count(self.name, self.stage)
        self.items, self._version, self._count, self._before = items, now.version, now.count, None
        mine = self.lake.scan(self.name, now.version).filter(pl.col("stage") == self.stage)
        # Without rows nothing need be joined with all items.
        has_rows = bool(self.lake.collect(self.name, mine.select(pl.len())).item())
        # Joined by hashes: an item is taken for finished only where those of its id and of its digest are the same.
        wanted = (items if has_rows else items.clear()).lazy()
        rows_of_items = (
            mine.select(
                key=pl.col("item_id").hash(),
                digest=_DIGEST.hash(),
                is_rejected=pl.col("made_from").str.starts_with(REJECTED).fill_null(False),
                live=_LIVE,
                revivable=_REVIVABLE,
            )
            .join(
                wanted.select(key=pl.col("id").hash(), wanted=pl.col("made_from").hash()).with_row_index("item"),
                on="key",
                how="left",
            )
            .select("item", "is_rejected", "live", "revivable", same=(pl.col("digest") == pl.col("wanted")))
            .with_columns(pl.col("same").fill_null(False))
        )
        rows = self.lake.collect(self.name, rows_of_items)
        others = rows.filter(pl.col("item").is_null() & pl.col("live")).height
        rows = rows.filter(pl.col("item").is_not_null()).unique()
        self._here = KeyHashes()
        self._here.add(items["id"].gather(rows["item"].unique()).hash())
        return rows, others

    @property
    def has_items(self) -> bool:
        """Whether any item of the run has a row here."""
        return bool(self._here)

    def holds(self, items: pl.Series) -> pl.Series:
        """For each item, whether it has a row here. A wrong yes is harmless: the exchange then finds nothing."""
        return self._here.holds(items.hash())

    def write(self, rows: pa.Table | None, redone: pl.DataFrame, commit: Commit) -> None:
        """Write a batch: rows of new items are appended, those of redone ones take the place of the old.

        `redone` gives `item_id` and `made_from`, whether or not the item has rows in this table.
        """
        keys = self._keys(rows)
        hashes = keys.select(hash_of(self.key)).to_series()
        self._refuse_shared(keys, hashes)
        taken = keys["item_id"].filter(self._live_before().holds(hashes))
        is_old = keys["item_id"].is_in(pl.concat([redone["item_id"], taken]).implode())
        try:
            if rows is not None and not is_old.all():
                new = rows.filter((~is_old).to_arrow()) if is_old.any() else rows
                self._note(self.lake.append_new(self.name, new, commit, self._count))
            elsewhere = redone.filter(self.holds(redone["item_id"]))
            if is_old.any() or elsewhere.height:
                old = None if rows is None else rows.filter(is_old.to_arrow())
                self._exchange(old, pl.concat([elsewhere, items_of([] if old is None else [old])]).unique(), commit)
        except ConcurrentRun:
            self._exchange(rows, pl.concat([redone, items_of([] if rows is None else [rows])]).unique(), commit)
            self.read_rows(self.items)
        self._written.add(hashes)

    def revive(self, items: pl.DataFrame, commit: Commit) -> None:
        """Bring the rows of these items (`item_id`, `made_from`) back to life, and end their other versions."""

        def find(table: pl.LazyFrame) -> pl.DataFrame:
            versions = self._versions(table, self._mine(items["item_id"]), items)
            back = versions.filter((pl.col("digest") == pl.col("wanted")) & _REVIVABLE)
            other = versions.filter((pl.col("digest") != pl.col("wanted")).fill_null(True) & _LIVE)
            return pl.concat(
                [
                    self._changes(back, "revive"),
                    self._changes(other, "end", SUPERSEDED),
                    self._of_others(table, back.select(self.key), items["item_id"]),
                ]
            )

        self._note(self.lake.change(self.name, find, [], commit))

    def end(self, rows: pl.DataFrame, why: str, commit: Commit) -> None:
        """Tombstone these versions (key columns and `made_from`)."""
        changes = self._changes(rows, "end", why)
        self._note(self.lake.change(self.name, lambda table: changes, [], commit))

    def tombstone(self, keys: pl.DataFrame, why: str, commit: Commit) -> None:
        """Tombstone every version of these keys, of any stage, for good."""
        self._note(self.lake.tombstone(self.name, keys, why, commit))

    def stale(self, not_done: pl.Series) -> pl.DataFrame:
        """Live rows of this stage that the input as it is does not account for: key, item_id, made_from, is_here."""
        wanted = self.items.select(item_id="id", wanted="made_from")
        stale_rows = (
            self.lake.scan(self.name)
            .filter((pl.col("stage") == self.stage) & _LIVE & ~pl.col("item_id").is_in(not_done.implode()))
            .select(_names(self.key))
            .join(wanted.lazy(), on="item_id", how="left")
            .filter((pl.col("wanted") != _DIGEST).fill_null(True))
            .with_columns(is_here=pl.col("wanted").is_not_null())
        )
        return self.lake.collect(self.name, stale_rows)

    # inside ----------------------------------------------------------------------------------------------

    def _exchange(self, rows: pa.Table | None, batch: pl.DataFrame, commit: Commit) -> None:
        """Insert rows and end what they and their items had, in one commit: no reader sees two live rows of a key."""
        new = [] if rows is None else rows
        writers = self._keys(rows)
        keys = writers.select(self.key).with_columns(remade=pl.lit(True))

        def find(table: pl.LazyFrame) -> pl.DataFrame:
            versions = self._versions(table, self._mine(batch["item_id"]), batch).join(keys, on=self.key, how="left")
            same = (pl.col("digest") == pl.col("wanted")).fill_null(False)
            is_older = same & (_LIVE | _REVIVABLE | pl.col("remade"))
            replaced = is_older if TABLES[self.name].keeps_versions else pl.lit(True)
            return pl.concat(
                [
                    self._changes(versions.filter(replaced), "delete"),
                    self._changes(versions.filter(~same & _LIVE & ~replaced), "end", SUPERSEDED),
                    self._of_others(table, keys.select(self.key), batch["item_id"], writers),
                ]
            )

        self._note(self.lake.change(self.name, find, new, commit))

    def _of_others(
        self, table: pl.LazyFrame, keys: pl.DataFrame, items: pl.Series, writers: pl.DataFrame | None = None
    ) -> pl.DataFrame:
        """Live rows with these keys of other items: they end, for good where both items are in the input.

        Where the other item is finished, both would take the key from each other in every run: the writers are refused.
        """
        if keys.is_empty():
            return self._changes(keys, "end")
        hashes = keys.select(hash_of(self.key)).to_series()
        same = _LIVE & hash_of(self.key).is_in(hashes.implode()) & ~self._mine(items)
        rows = self.lake.collect(self.name, table.filter(same).select(_names(self.key)))
        rows = rows.join(keys, on=self.key, how="semi")
        wanted = self.items.select(item_id="id", wanted="made_from")
        rows = rows.join(wanted, on="item_id", how="left").with_columns(digest=_DIGEST)
        finished = rows.filter(pl.col("digest") == pl.col("wanted"), pl.col("stage") == self.stage)
        if writers is not None and finished.height:
            self._refuse(pl.concat([finished.select(writers.columns), writers.join(finished, on=self.key, how="semi")]))
        is_here = pl.col("wanted").is_not_null()
        return pl.concat(
            [
                self._changes(rows.filter(is_here), "end", TAKEN),
                self._changes(rows.filter(~is_here), "end", INPUT_GONE),
            ]
        )

    def _mine(self, items: pl.Series) -> pl.Expr:
        return ((pl.col("stage") == self.stage) & pl.col("item_id").is_in(items.implode())).fill_null(False)

    def _versions(self, table: pl.LazyFrame, which: pl.Expr, items: pl.DataFrame) -> pl.DataFrame:
        versions = self.lake.collect(self.name, table.filter(which).select(*_names(self.key), "tombstone"))
        wanted = items.select("item_id", wanted="made_from")
        return versions.join(wanted, on="item_id", how="left").with_columns(digest=_DIGEST)

    def _changes(self, rows: pl.DataFrame, action: str, why: str | None = None) -> pl.DataFrame:
        if "made_from" not in rows.columns:
            rows = rows.with_columns(made_from=pl.lit(None, pl.String))
        reason = pl.lit(why, pl.String)
        return rows.select(*self.key, "made_from", pl.lit(action).alias(ACTION), reason.alias("tombstone")).unique(
            [*self.key, "made_from"]
        )

    def _keys(self, rows: pa.Table | None) -> pl.DataFrame:
        names = list(dict.fromkeys([*self.key, "item_id"]))
        if rows is None:
            return pl.DataFrame(schema=dict.fromkeys(names, pl.String))
        frame = pl.from_arrow(rows.select(names))
        assert isinstance(frame, pl.DataFrame)
        return frame

    def _live_before(self) -> KeyHashes:
        if self._before is None:
            self._before = KeyHashes()
            if self._version >= 0 and "item_id" not in self.key:
                live = self.lake.scan(self.name, self._version).filter(_LIVE)
                self._before.add(self.lake.collect(self.name, live.select(hash_of(self.key))).to_series())
        return self._before

    def _refuse_shared(self, keys: pl.DataFrame, hashes: pl.Series) -> None:
        """Two items of a run must not write one row, whether in one batch or in two."""
        is_unique = hashes.n_unique() == len(hashes)
        shared = keys.head(0) if is_unique else keys.filter(pl.struct(self.key).is_duplicated())
        if shared.is_empty():
            again = keys.filter(self._written.holds(hashes))
            if again.is_empty():
                return
            written = self.lake.scan(self.name).filter((pl.col("run_id") == self.run_id) & _LIVE)
            names = list(dict.fromkeys([*self.key, "item_id"]))
            both = written.select(names).join(again.select(self.key).lazy(), on=self.key, how="semi")
            shared = self.lake.collect(self.name, both)
            if shared.is_empty():
                return  # the same hash of another key
            shared = pl.concat([shared, again.join(shared, on=self.key, how="semi")])
        self._refuse(shared)

    def _refuse(self, shared: pl.DataFrame) -> None:
        first = shared.row(0, named=True)
        raise LakeError(
            f"step {self.stage}: items {', '.join(sorted(set(shared['item_id']))[:3])} wrote the same "
            f"{self.name} row ({', '.join(f'{k}={first[k]}' for k in self.key)}); keys must follow from the item"
        )

    def _note(self, written: Written) -> None:
        # If another run has written in between, the count stays behind, and the next append finds out.
        if written.before == self._count:
            self._count = written.count


def _names(key: list[str]) -> list[str]:
    return list(dict.fromkeys([*key, "stage", "item_id", "made_from"]))


def items_of(tables: Iterable[pa.Table]) -> pl.DataFrame:
    """The items (`item_id`) that rows belong to, with their digest."""
    frames = [pl.DataFrame(table.select(["item_id", "made_from"])) for table in tables]
    none = pl.DataFrame(schema={"item_id": pl.String, "made_from": pl.String})
    return pl.concat([none, *frames]).with_columns(_DIGEST).unique()
