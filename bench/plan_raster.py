"""A world population raster of 30 arc-seconds (43,200 x 21,600 pixels): seconds and memory to grid it.

The raster is made up, tiled and compressed like WorldPop's: people on a quarter of the pixels.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

PROGRAM = """
import json, resource, sys, time
begin = time.perf_counter()
from tasks.plan.population import raster_cells
people = raster_cells(sys.argv[1]).people.sum()
print(json.dumps({
    "seconds": time.perf_counter() - begin,
    "cpu_seconds": time.process_time(),
    "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    "people": float(people),
}))
"""


def write_world(path: Path) -> None:
    """Repeating blocks of noise: quick to write, no easier to read than real counts."""
    import rasterio
    from rasterio.transform import from_origin
    from rasterio.windows import Window

    random = np.random.default_rng(4)
    with rasterio.open(
        path, "w", driver="GTiff", width=43_200, height=21_600, count=1, dtype="float32", crs="EPSG:4326",
        transform=from_origin(-180, 90, 1 / 120, 1 / 120), nodata=-99999.0, tiled=True, blockxsize=512, blockysize=512,
        compress="lzw",
    ) as sink:  # fmt: skip
        for top in range(0, 21_600, 512):
            height = min(512, 21_600 - top)
            block = random.integers(1, 200, (height, 1024)).astype(np.float32)
            block[random.random(block.shape) < 0.75] = 0
            strip = np.tile(block, (1, 43))[:, :43_200]
            sink.write(strip, 1, window=Window(0, top, 43_200, height))


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "people.tif"
        write_world(path)
        size = path.stat().st_size / 1e6
        done = subprocess.run([sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    print(
        f"  933,120,000 pixels ({size:.0f} MB on disk): {found['seconds']:.0f} s, {found['cpu_seconds']:.0f} s of CPU,"
        f" {found['megabytes']:.0f} MB of memory (at most 2,000)"
    )
    return int(found["megabytes"] > 2000)


if __name__ == "__main__":
    raise SystemExit(main())
