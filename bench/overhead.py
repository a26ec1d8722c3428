"""What the frame costs: a no-op stage over 100,000 rows, beside plain Ray Data and plain Polars.

All four read the same rows, call one Python function a row and end in a table on disk. Only the frame also keys,
digests and accounts for every row, and can be killed and run again. No figure is asked for, only that all rows arrive.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl

from schemas.settings.base import Settings
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings
from tasks.lake import Lake
from tasks.runtime.ray_start import start_ray, stop_ray
from tasks.runtime.ray_workers import release_workers
from tasks.runtime.runner import Context, Inputs, Kept, Row, Stage, WorkerSetup, run
from tasks.services import connect

ROWS = 100_000


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


def keep(item: Row, bench: None) -> Kept:
    return Kept({"places": [_place(item)]})


def _place(item: Row) -> Row:
    return {"place_id": item["id"], "country": "FR", "lat": item["lat"], "lon": item["lon"], "split": "train"}


def through_frame(folder: Path) -> None:
    stage = Stage("noop", (), ("places",), items, keep, open_nothing)
    context = Context(Lake(folder), connect(ServicesSettings(), {}))
    result = run(stage, NoSettings(), context)
    assert result.kept == ROWS


def through_ray_data(folder: Path) -> None:
    import ray

    release_workers()  # they hold the CPUs Ray Data needs
    ray.data.DataContext.get_current().enable_progress_bars = False
    ray.data.from_arrow(rows(ROWS).to_arrow()).map(_place).write_parquet(str(folder))


def through_polars(folder: Path) -> None:
    pl.DataFrame([_place(row) for row in rows(ROWS).iter_rows(named=True)]).write_delta(str(folder))


def through_polars_expressions(folder: Path) -> None:
    rows(ROWS).rename({"id": "place_id"}).with_columns(country=pl.lit("FR"), split=pl.lit("train")).write_delta(
        str(folder)
    )


def measure(function: Callable[[Path], None]) -> float:
    """Rows a second, the better of two runs: the first one also starts workers."""
    best = 0.0
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            function(Path(folder) / "table")
            best = max(best, ROWS / (time.perf_counter() - start))
    return best


def main() -> int:
    start_ray(SpreadSettings())
    found = {
        "geofix frame": measure(through_frame),
        "Ray Data map": measure(through_ray_data),
        "Polars, a Python function a row": measure(through_polars),
        "Polars expressions": measure(through_polars_expressions),
    }
    own = found["geofix frame"]
    for name, speed in found.items():
        print(f"   {name:<34} {speed:>12,.0f} rows/s   frame is {own / speed:.2f} times this")
    stop_ray()
    return 0
