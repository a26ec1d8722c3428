"""Rebuild `data/countries.gz` from region outlines. Run by maintainers, never by the server.

    python -m infra.derive.countries tasks/geo/data/regions.parquet

The outlines are Natural Earth's (public domain) under ISO 3166 codes; see the README beside that file. They are read as
data only: the offline world shares no code with the pipeline. What is stored: `infra/offline/country_map.py`.
"""

import argparse
import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from infra.offline.country_map import COLUMNS, FILE, ROWS

PER_DEGREE = 100_000


def crossings(path: Path) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """(codes, row, column, country on the east side), sorted by row and column: where a row's country changes."""
    table = pq.read_table(path)

    def flat(name: str) -> np.ndarray:
        return np.asarray(table[name].combine_chunks().flatten())

    column: Any = table["ring_sizes"].combine_chunks()
    rings_of_region = np.diff(np.asarray(column.offsets))
    sizes = flat("ring_sizes").astype(np.int64)
    country = table["country"].to_pylist()
    codes = sorted(set(country))
    number = np.array([codes.index(code) + 1 for code in country])
    of_ring = np.repeat(number, rings_of_region)
    lat, lon = flat("lat_e5") / PER_DEGREE, flat("lon_e5") / PER_DEGREE
    head = np.ones(len(lat), bool)
    head[np.cumsum(sizes) - 1] = False  # the last corner of a ring is its first
    first = np.flatnonzero(head)
    label = np.repeat(of_ring, sizes - 1)
    lat0, lat1, lon0, lon1 = lat[first], lat[first + 1], lon[first], lon[first + 1]
    # Row r is looked at along its middle, which no corner touches: corners are whole 1e-5 degrees.
    place0, place1 = (lat0 + 90) * ROWS / 180 - 0.5, (lat1 + 90) * ROWS / 180 - 0.5
    low, high = np.ceil(np.minimum(place0, place1)), np.ceil(np.maximum(place0, place1))
    count = (high - low).astype(np.int64)
    side = np.repeat(np.arange(len(count)), count)
    row = low[side].astype(np.int64) + np.arange(len(side)) - np.repeat(np.cumsum(count) - count, count)
    at = (row + 0.5) * 180 / ROWS - 90
    x = lon0[side] + (at - lat0[side]) / (lat1[side] - lat0[side]) * (lon1[side] - lon0[side])
    # Rings run counter-clockwise: going south the region lies in the east, and is entered by a step eastwards.
    change = np.where(lat1[side] < lat0[side], label[side], -label[side])
    step = np.clip(np.round((x + 180) * COLUMNS / 360), 0, COLUMNS - 1).astype(np.int64)
    key, inverse = np.unique(row * COLUMNS + step, return_inverse=True)
    change = np.bincount(inverse, weights=change).round().astype(np.int64)
    kept = change != 0  # a border between two regions of one country cancels out
    key, after = key[kept], np.cumsum(change[kept])
    if after[-1] != 0 or after.min() < 0 or after.max() > len(codes):
        raise ValueError("the outlines overlap or are not closed")
    return codes, key // COLUMNS, key % COLUMNS, after


def main(argv: list[str] | None = None) -> int:
    """Writes the file; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m infra.derive.countries")
    parser.add_argument("regions", type=Path)
    codes, row, column, country = crossings(parser.parse_args(argv).regions)
    starts = np.searchsorted(row, np.arange(ROWS + 1)).astype("<u4")
    head = json.dumps({"codes": codes, "changes": len(row)}).encode() + b"\n"
    # Steps from one change to the next are small numbers, which pack well.
    steps = np.diff(column, prepend=0).astype("<u2")
    raw = head + starts.tobytes() + steps.tobytes() + country.astype("u1").tobytes()
    FILE.write_bytes(gzip.compress(raw, 9, mtime=0))
    print(f"{FILE.name}: {len(codes)} countries, {len(row):,} changes, {FILE.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
