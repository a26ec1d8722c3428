"""Perspective views of a 4096 x 2048 panorama: ours, OpenCV's remap with its maps at hand, py360convert.

All bilinear. OpenCV gets the maps computed beforehand in its quickest form (fixed point) and the panorama with its
border; py360convert keeps the maps of its last eight views too, so after the first call all three only look pixels up.
Its outermost samples lie on the edge of the field of view, ours half a pixel inside, so its field is narrowed by that.
Measured twice: with as many threads as OpenCV takes by itself (by the clock on the wall, so on an idle machine), and
with one thread, as in a worker (by processor time).
"""

import math
import os
import sys
import time
from collections.abc import Callable

import cv2
import numpy as np
import py360convert

from bench.goals import Goal, judge
from bench.panorama import best_of, natural_panorama
from tasks.imaging.perspective import Panorama, View, view_maps

VIEWS = (
    View(0, 0, 90, 1024, 768),
    View(170, 20, 90, 1024, 768),  # over the seam
    View(10, 85, 90, 1024, 768),  # over the pole
    View(-60, -40, 75, 512, 512),
    View(-60, -40, 75, 1024, 1024),
)
AROUND = tuple(View(yaw, 0, 60, 1024, 768) for yaw in range(0, 360, 30))
REPEATS = 30
# "As fast as OpenCV": less than a twentieth is what two runs of the same thing differ by.
GOAL_OPENCV, GOAL_PY360CONVERT, GOAL_GREY = 0.95, 5.0, 1


def by_py360convert(panorama: np.ndarray, view: View) -> np.ndarray:
    half = math.tan(math.radians(view.fov_deg) / 2)
    fov = [math.degrees(2 * math.atan(half * (side - 1) / view.width)) for side in (view.width, view.height)]
    return py360convert.e2p(
        panorama, (fov[0], fov[1]), view.yaw_deg, view.pitch_deg, (view.height, view.width), view.roll_deg, "bilinear"
    )


def compare(picture: np.ndarray, view: View, clock: Callable[[], float]) -> tuple[float, float]:
    """OpenCV's and py360convert's time over ours."""
    panorama = Panorama(picture)
    wide = panorama._pixels
    whole, parts = view_maps(panorama.width, panorama.height, view, 1)
    seconds = best_of(
        {
            "geofix": lambda: panorama.view(view),
            "OpenCV": lambda: cv2.remap(wide, whole, parts, cv2.INTER_LINEAR),
            "py360convert": lambda: by_py360convert(picture, view),
        },
        REPEATS,
        clock,
    )
    ratios = seconds["OpenCV"] / seconds["geofix"], seconds["py360convert"] / seconds["geofix"]
    print(
        f"    {view.width} x {view.height}, yaw {view.yaw_deg:g}, pitch {view.pitch_deg:g}, fov {view.fov_deg:g}: "
        + ", ".join(f"{name} {taken * 1000:.1f} ms" for name, taken in seconds.items())
        + f"; OpenCV / geofix {ratios[0]:.2f}, py360convert / geofix {ratios[1]:.1f}"
    )
    return ratios


def goals(threads: int, ratios: list[tuple[float, float]]) -> list[Goal]:
    """The views in the middle: OpenCV's and py360convert's time over ours."""
    opencv, other = (float(np.median(column)) for column in zip(*ratios, strict=True))
    return [
        Goal(f"OpenCV remap / geofix on {threads} threads", opencv, at_least=GOAL_OPENCV),
        Goal(f"py360convert / geofix on {threads} threads", other, at_least=GOAL_PY360CONVERT),
    ]


def main() -> int:
    found = []
    picture = natural_panorama(4096, 2048)
    noise = np.random.default_rng(0).integers(0, 256, picture.shape, dtype=np.uint8)
    for name, given in (("photo-like", picture), ("noise", noise)):
        apart = [Panorama(given).view(view).astype(int) - by_py360convert(given, view) for view in VIEWS]
        most = max(int(np.abs(d).max()) for d in apart)
        print(f"  grey levels between geofix and py360convert, {name}: at most {most}")
        found.append(Goal(f"grey levels apart, {name}", most, at_most=GOAL_GREY))
    for threads, clock in ((os.cpu_count() or 1, time.perf_counter), (1, time.thread_time)):
        cv2.setNumThreads(threads)
        print(f"  {threads} thread{'s' if threads > 1 else ''}")
        ratios = [compare(picture, view, clock) for view in VIEWS]
        opencv, other = goals(threads, ratios)
        print(f"    OpenCV remap / geofix: {opencv.found:.2f} in the middle (at least {GOAL_OPENCV})")
        print(f"    py360convert / geofix: {other.found:.1f} in the middle (at least {GOAL_PY360CONVERT:g})")
        found += [opencv, other]
    panorama = Panorama(picture)
    around = best_of(
        {
            "geofix": lambda: [panorama.view(view) for view in AROUND],
            "py360convert": lambda: [by_py360convert(picture, view) for view in AROUND],
        },
        4,
    )
    print(
        f"    twelve views around, 1024 x 768: geofix {around['geofix'] * 1000:.0f} ms, "
        f"py360convert {around['py360convert'] * 1000:.0f} ms, {around['py360convert'] / around['geofix']:.0f} times"
    )
    return judge(found)


if __name__ == "__main__":
    sys.exit(main())
