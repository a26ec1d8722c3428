"""A plan of 1,000,000 places beside one of 100,000: seconds and memory, each in a fresh process."""

import json
import subprocess
import sys

# What `geofix plan` does before its rows go into the lake, with nothing warm.
PROGRAM = """
import json, resource, sys, time
begin = time.perf_counter()
from schemas.settings.plan import PlanSettings
from tasks.plan.stage import plan_places
places, refused = plan_places(PlanSettings(places=int(sys.argv[1])))
print(json.dumps({
    "seconds": time.perf_counter() - begin,
    "cpu_seconds": time.process_time(),
    "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    "placed": places.height,
    "refused": refused.height,
}))
"""


def measure(places: int) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(places)], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def main() -> int:
    small, large = measure(100_000), measure(1_000_000)
    for places, found in ((100_000, small), (1_000_000, large)):
        print(
            f"  {places:9,} places  {found['seconds']:6.1f} s  {found['cpu_seconds']:6.1f} s of CPU"
            f"  {found['megabytes']:6.0f} MB  {found['placed']:,} placed, {found['refused']:,} without room"
        )
    times = large["seconds"] / small["seconds"]
    print(f"  {times:.1f} times the time (at most 12), memory limit 1,500 MB")
    return int(times > 12 or large["megabytes"] > 1500)


if __name__ == "__main__":
    raise SystemExit(main())
