"""Rebuild `infra/offline/data/land.npy.gz` from an open package. Run by maintainers, never by the server.

    npm pack world-atlas@2.0.2      # then unpack it
    python -m infra.derive.land package/land-10m.json

The file holds the outlines of all land, Natural Earth 10m (public domain), simplified to about 300 m: one array of
int16 pairs, rings one after another. A ring starts with three pairs: its number of corners (thirty thousands, rest)
and its first corner in steps of `STEP_DEG` (thousands, rest); then come its other corners as differences in steps.
"""

import gzip
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import shapely

from infra.derive.topology import read_topology

STEP_DEG = 0.001
_TOLERANCE_DEG = 0.003
OUT = Path(__file__).parents[1] / "offline/data" / "land.npy.gz"


def encode(rings: list[np.ndarray]) -> np.ndarray:
    """The file's array; corners that fall on the same step are dropped, long sides get corners between."""
    out: list[np.ndarray] = []
    for ring in rings:
        steps = np.rint(ring[:-1] / STEP_DEG).astype(np.int64)
        steps = steps[np.any(steps != np.roll(steps, 1, axis=0), axis=1)]
        if len(steps) < 3:
            continue
        corners = [steps[:1]]
        for a, b in pairwise(steps):
            pieces = int(np.max(np.abs(b - a)) // 30_000) + 1
            corners.append(np.rint(a + (b - a) * (np.arange(1, pieces + 1)[:, None] / pieces)).astype(np.int64))
        units = np.concatenate(corners)
        high, low = units[0] // 1000, units[0] % 1000
        out += [np.array([[len(units) // 30_000, len(units) % 30_000], high, low]), np.diff(units, axis=0)]
    return np.concatenate(out).astype(np.int16)


def main() -> int:
    """Writes the file; returns the exit code."""
    rings = []
    for _, shape in read_topology(Path(sys.argv[1]), "land"):
        for polygon in shapely.get_parts(shape):
            for ring in (polygon.exterior, *polygon.interiors):
                simple = shapely.simplify(shapely.Polygon(ring), _TOLERANCE_DEG, preserve_topology=True)
                if not simple.is_empty:
                    rings.append(np.asarray(simple.exterior.coords))
    with OUT.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, compresslevel=9) as file:
        np.save(file, encode(rings))
    print(f"{OUT.name}: {len(rings):,} rings, {sum(map(len, rings)):,} corners, {OUT.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
