"""What the runner costs: a no-op stage over 1 M rows, beside plain Ray Data writing the same Delta table.

Both start from the same rows in memory, call one Python function a row in as many processes, and end in a committed
Delta table with the same values: those of a place and the system columns. Only the runner also skips finished items,
digests and accounts for every row, refuses shared keys, and can be killed and run again.
"""

import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from bench.goals import Goal, judge
from schemas.settings.base import Settings
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings
from tasks.lake import Lake
from tasks.runtime.on_ray.backend import release_workers
from tasks.runtime.on_ray.start import start_ray, stop_ray
from tasks.runtime.runner import Context, Inputs, Kept, Row, Stage, WorkerSetup, run
from tasks.services import connect

ROWS = 1_000_000
BLOCKS = 16
TIMES = 2  # the better one counts: the first also starts workers


class NoSettings(Settings):
    """A no-op has nothing to set."""

    rows: int = ROWS


def rows(count: int) -> pl.DataFrame:
    """Rows as wide as a place."""
    number = pl.int_range(count, eager=True)
    return pl.DataFrame({"id": number.cast(pl.String), "lat": number / count * 90.0, "lon": number / count * 180.0})


def items(inputs: Inputs, settings: NoSettings) -> pl.DataFrame:
    return rows(settings.rows)


def open_nothing(settings: NoSettings, setup: WorkerSetup) -> None:
    return None


def keep(item: Row, context: None) -> Kept:
    return Kept({"places": [_place(item)]})


def _place(item: Row) -> Row:
    return {"place_id": item["id"], "country": "FR", "lat": item["lat"], "lon": item["lon"], "split": "train"}


def through_runner(folder: Path) -> None:
    stage = Stage("noop", (), ("places",), items, keep, open_nothing)
    result = run(stage, NoSettings(), Context(Lake(folder), connect(ServicesSettings(), {})))
    assert result.kept == ROWS


def through_ray_data(folder: Path) -> None:
    import ray

    release_workers()  # they hold the CPUs that Ray Data needs
    ray.data.DataContext.get_current().enable_progress_bars = False
    now = datetime.now(UTC)

    def placed(item: Row) -> dict[str, Any]:
        system = {"stage": "noop", "item_id": item["id"], "made_from": "0" * 24, "run_id": "run", "written_at": now}
        return _place(item) | system

    blocks = [part.to_arrow() for part in rows(ROWS).iter_slices(ROWS // BLOCKS)]  # one block would be one process
    ray.data.from_arrow(blocks).map(placed).write_delta(str(folder))
    assert pl.scan_delta(str(folder)).select(pl.len()).collect().item() == ROWS


def measure(function: Callable[[Path], None]) -> float:
    """Seconds, of the better run."""
    best = float("inf")
    for _ in range(TIMES):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            function(Path(folder) / "lake")
            best = min(best, time.perf_counter() - start)
    return best


def main() -> int:
    start_ray(SpreadSettings())
    own = measure(through_runner)
    print(f"   the runner   {own:6.1f} s, {ROWS / own:>9,.0f} rows/s", flush=True)
    plain = measure(through_ray_data)
    print(
        f"   Ray Data     {plain:6.1f} s, {ROWS / plain:>9,.0f} rows/s; the runner takes {own / plain:.2f} times this"
    )
    stop_ray()
    return judge([Goal("time of a no-op stage, in times of plain Ray Data", own / plain, at_most=1.3)])
