"""`plan.roads` on a file of five million segments: seconds, memory, and whether the countries' quotas follow.

The file holds lines of 20 segments along random walks around towns, as a GeoPackage.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import geopandas
import numpy as np
import pyogrio
import shapely

from bench.goals import Goal, judge
from schemas.settings.plan import PlanSettings
from tasks.geo.atlas import gazetteer
from tasks.plan.quota import country_quotas, country_table

SEGMENTS_A_LINE = 20
MEMORY_GB = 4.0


def write_roads(path: Path, segments: int) -> None:
    """Random walks of steps of about 300 m that begin at towns."""
    chance = np.random.default_rng(1)
    towns = gazetteer()
    lines = segments // SEGMENTS_A_LINE
    for begin in range(0, lines, 50_000):
        count = min(50_000, lines - begin)
        at = chance.integers(0, towns.height, count)
        start = np.stack([towns["lon"].to_numpy()[at], towns["lat"].to_numpy()[at]], axis=1)
        steps = chance.normal(0, 0.003, (count, SEGMENTS_A_LINE, 2))
        points = np.concatenate([start[:, None], start[:, None] + np.cumsum(steps, axis=1)], axis=1)
        frame = geopandas.GeoDataFrame(geometry=shapely.linestrings(points), crs="EPSG:4326")
        pyogrio.write_dataframe(frame, path, append=begin > 0)


def measure(path: str) -> None:
    """In a process of its own: its peak of memory is that of reading the roads."""
    from tasks.plan.roads import road_lengths

    began = time.monotonic()
    lengths = road_lengths(path)
    seconds = time.monotonic() - began
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(json.dumps({"seconds": seconds, "peak_gb": peak_gb, "km": sum(lengths.values()), "countries": len(lengths)}))


def run_measured(path: Path, cache: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.plan_roads", "--measure", str(path)]
    own = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=own)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segments", type=int, default=5_000_000)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(given.measure)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path, cache = Path(folder) / "roads.gpkg", Path(folder) / "cache"
        write_roads(path, given.segments)
        first, again = run_measured(path, cache), run_measured(path, cache)
        print(f"   {given.segments:,} segments, {path.stat().st_size / 1e6:,.0f} MB: {first['seconds']:.1f} s, "
              f"{first['peak_gb']:.2f} GB at most, {first['km']:,.0f} km in {first['countries']:.0f} countries; "
              f"the second time {again['seconds']:.2f} s")  # fmt: skip
        settings = PlanSettings(places=1000)
        with_roads = settings.model_copy(update={"roads": str(path)})
        before, after = (country_quotas(country_table(one), one) for one in (settings, with_roads))
        moved = sum(abs(after[code] - before[code]) for code in before) / 2
        print(f"   of 1,000 places {moved:.0f} go to other countries than by the packaged table")
        return judge(
            [
                Goal("memory in GB", first["peak_gb"], at_most=MEMORY_GB),
                Goal("quotas that follow", moved, at_least=1),
                Goal("seconds of the second time", again["seconds"], at_most=1.0),
            ]
        )


if __name__ == "__main__":
    sys.exit(main())
