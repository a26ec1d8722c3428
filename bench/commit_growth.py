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


def fill(lake: Lake, first: int, count: int) -> None:
    """Bring a table to `first + count` rows."""
    for begin in range(first, first + count, FILL):
        part = rows(begin, min(FILL, first + count - begin), "fill")
        lake.append("images", to_arrow(TABLES["images"], part), Commit("fill", begin + 1, "collect"))


def measure(lake: Lake, first: int) -> tuple[float, float, float]:
    """Seconds of CPU and of time that a commit takes, and of time that the look before them takes."""
    run_id = f"run-{first}"
    ledger = Ledger(lake, "collect", ("images",), run_id, "hash", "{}", "0", {})
    batches = [rows(first + n * NEW, NEW, run_id) for n in range(COMMITS)]
    start = time.perf_counter()
    todo = ledger.look(pl.concat([batch.select("made_from", id="item_id") for batch in batches])).todo
    look_s = time.perf_counter() - start
    assert todo.height == COMMITS * NEW
    cpu, wall = [], []
    for batch in batches:
        result = ChunkResult(kept=batch["item_id"].to_list(), tables={"images": to_arrow(TABLES["images"], batch)})
        start, cpu_start = time.perf_counter(), time.process_time()
        ledger.commit([result])
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - cpu_start)
    # The first one also reads which keys are there, once a run.
    return median(cpu[1:]), median(wall[1:]), look_s + wall[0] - median(wall[1:])


def main() -> int:
    found: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        lake, have = Lake(Path(folder) / "lake"), 0
        for size in SIZES:
            fill(lake, have, size - have)
            os.sync()  # else the commits wait for what filling the table left to be written
            cpu, wall, once = measure(lake, size)
            have = size + COMMITS * NEW
            assert lake.scan("images").select(pl.len()).collect().item() == have
            found.append((cpu, wall))
            print(
                f"   {size:>9,} rows: {cpu:.3f} s CPU, {wall:.3f} s a commit of {NEW:,}; {once:.2f} s once a run",
                flush=True,
            )
    (first_cpu, first_wall), (last_cpu, last_wall) = found[0], found[-1]
    return judge(
        [
            Goal("CPU of a commit, from the smallest table to the largest", last_cpu / first_cpu, at_most=1.5),
            Goal("time of a commit, from the smallest table to the largest", last_wall / first_wall, at_most=1.5),
        ]
    )
