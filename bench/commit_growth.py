"""What a commit costs as its table grows: 10,000 new rows into tables of 20 k, 1 M and 5 M rows.

The rows go through the ledger, as those of a stage do: checked for shared keys, appended, with lineage. The table is
of images, with ids that are hashes, so that neither range nor order of the keys helps. What a run pays once, for
finding out what is finished, is printed beside it.
"""

import hashlib
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import polars as pl

from bench.goals import Goal, judge
from schemas.tables import TABLES
from tasks.lake import Commit, Lake
from tasks.lake.table_schema import to_arrow
from tasks.runtime.chunk import ChunkResult
from tasks.runtime.ledger import Ledger

SIZES = (20_000, 1_000_000, 5_000_000)
NEW = 10_000
COMMITS = 16
FILL = 250_000  # rows a commit while the table is filled


def rows(first: int, count: int, run_id: str) -> pl.DataFrame:
    """Rows of `images` as wide as those a stage writes."""
    names = [hashlib.blake2b(str(k).encode(), digest_size=12).hexdigest() for k in range(first, first + count)]
    return pl.DataFrame({"image_id": names, "item_id": names, "made_from": names}).with_columns(
        *(pl.lit(value).alias(name) for name, value in _SAME.items()),
        sha256=pl.col("image_id") + pl.col("image_id"),
        request_url="https://images.example/" + pl.col("image_id"),
        run_id=pl.lit(run_id),
        written_at=pl.lit(datetime.now(UTC)),
    )


_SAME = {
    "kind": "panorama", "lat": 48.1, "lon": 2.3, "source": "mapillary", "source_id": "123456789012345678",
    "licence": "CC BY-SA 4.0", "attribution": "one of many", "stage": "collect", "extension": "jpg", "bytes": 500_000,
}  # fmt: skip


class Growing:
    """A table of some size, and a run that commits to it."""

    def __init__(self, lake: Lake, size: int) -> None:
        for begin in range(0, size, FILL):
            part = rows(begin, min(FILL, size - begin), "fill")
            lake.append("images", to_arrow(TABLES["images"], part), Commit("fill", begin + 1, "collect"))
        self._lake, self._size = lake, size
        self._ledger = Ledger(lake, "collect", ("images",), "run", "hash", "{}", "0", {})
        self._batches = [rows(size + n * NEW, NEW, "run") for n in range(COMMITS)]
        self.cpu: list[float] = []
        self.wall: list[float] = []
        self.once_s = 0.0

    def look(self) -> None:
        """What a run pays once: which items are finished, and, with the first commit, which keys are there."""
        items = pl.concat([batch.select("made_from", id="item_id") for batch in self._batches])
        start = time.perf_counter()
        assert self._ledger.plan_run(items).todo.height == COMMITS * NEW
        self.commit(0)
        self.once_s = time.perf_counter() - start
        self.cpu, self.wall = [], []

    def commit(self, number: int) -> None:
        batch = self._batches[number]
        result = ChunkResult(kept=batch["item_id"].to_list(), tables={"images": to_arrow(TABLES["images"], batch)})
        start, cpu_start = time.perf_counter(), time.process_time()
        self._ledger.commit([result])
        self.wall.append(time.perf_counter() - start)
        self.cpu.append(time.process_time() - cpu_start)

    def check(self) -> None:
        assert self._lake.scan("images").select(pl.len()).collect().item() == self._size + COMMITS * NEW


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        tables = {size: Growing(Lake(Path(folder) / str(size)), size) for size in SIZES}
        os.sync()  # else the commits wait for what filling the tables left to be written
        for table in tables.values():
            table.look()
        for number in range(1, COMMITS):  # in turns, so that whatever else the machine does meets them alike
            for table in tables.values():
                table.commit(number)
        for size, table in tables.items():
            table.check()
            print(
                f"   {size:>9,} rows: {median(table.cpu):.3f} s CPU, {median(table.wall):.3f} s a commit of {NEW:,}; "
                f"{table.once_s:.2f} s once a run",
                flush=True,
            )
    first, last = tables[SIZES[0]], tables[SIZES[-1]]
    what = "of a commit, from the smallest table to the largest"
    return judge(
        [
            Goal(f"CPU {what}", median(last.cpu) / median(first.cpu), at_most=1.5),
            Goal(f"time {what}", median(last.wall) / median(first.wall), at_most=1.5),
        ]
    )
