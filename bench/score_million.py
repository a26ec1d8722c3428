"""A million predictions scored from jsonl, CSV and Parquet, beside a loop over geopy.

What a user would write: read the file, and call `geopy.distance.great_circle` on each row.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
from geopy.distance import great_circle

from bench.goals import Goal, judge
from tasks.evaluate.predictions import score_file
from tasks.geo.distance import EARTH_RADIUS_KM

ROWS = 1_000_000
MOST_S = 30.0
TIMES = 20.0


def predictions(rows: int, seed: int = 0) -> pl.DataFrame:
    """Predictions of any quality, one in fifty missing."""
    rng = np.random.default_rng(seed)
    true_lat, true_lon = np.degrees(np.arcsin(rng.uniform(-1, 1, rows))), rng.uniform(-180, 180, rows)
    error = rng.lognormal(0, 3, rows)
    lat = np.clip(true_lat + error / 111, -90, 90)
    lon = (true_lon + rng.normal(0, 1, rows) + 180) % 360 - 180
    return pl.DataFrame(
        {
            "id": [f"image-{i:07d}" for i in range(rows)],
            "lat": pl.Series(lat).set(pl.Series(rng.random(rows) < 0.02), None),
            "lon": lon,
            "true_lat": true_lat,
            "true_lon": true_lon,
        }
    )


def geopy_loop(path: Path) -> np.ndarray:
    """Distances by geopy, one row at a time, with our radius."""
    import pandas as pd

    readers = {".jsonl": lambda p: pd.read_json(p, lines=True), ".csv": pd.read_csv, ".parquet": pd.read_parquet}
    table = readers[path.suffix](path)
    found = np.full(len(table), np.nan)
    for at, row in enumerate(table.itertuples(index=False)):
        if row.lat == row.lat:
            distance = great_circle((row.true_lat, row.true_lon), (row.lat, row.lon))
            found[at] = distance.km / distance.RADIUS * EARTH_RADIUS_KM
    return found


def main() -> int:
    goals: list[Goal] = []
    with tempfile.TemporaryDirectory() as folder:
        table = predictions(ROWS)
        files = {kind: Path(folder) / f"p.{kind}" for kind in ("jsonl", "csv", "parquet")}
        table.write_ndjson(files["jsonl"])
        table.write_csv(files["csv"])
        table.write_parquet(files["parquet"])
        for kind, path in files.items():
            started = time.perf_counter()
            report = score_file(path)
            took = time.perf_counter() - started
            started = time.perf_counter()
            theirs = geopy_loop(path)
            loop = time.perf_counter() - started
            ours = report.table["error_km"].cast(pl.Float64).fill_null(np.nan).to_numpy()
            apart = float(np.nanmax(np.abs(ours - theirs)))
            print(
                f"   {kind:<8} {took:6.1f} s with every metric; geopy {loop:6.1f} s for the distances alone; "
                f"{loop / took:.0f} times; largest difference {1000 * apart:.3g} m",
                flush=True,
            )
            goals += [
                Goal(f"seconds for {ROWS:,} rows of {kind}", took, at_most=MOST_S),
                Goal(f"times a geopy loop, {kind}", loop / took, at_least=TIMES),
                Goal(f"largest difference from geopy in km, {kind}", apart, at_most=1e-6),
                Goal(
                    f"rows geopy and we both leave out, {kind}", float((np.isnan(ours) == np.isnan(theirs)).mean()), 1.0
                ),
            ]
    return judge(goals)
