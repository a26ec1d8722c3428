"""Addresses of 1,000,000 points around towns, beside the `reverse_geocode` package, with every socket refused.

`reverse_geocode.get` answers one point, as a stage that works picture by picture asks it; it is timed on `ASKED` points
and multiplied. Its `search` takes all points at once and is shown beside it. Both give the nearest town of a plane of
degrees and that town's country. The right country of a point is that of the polygon it lies in, found by shapely,
independently of the lookup under test.
"""

import socket
import time
from typing import Any

import numpy as np

from bench.goals import Goal, judge
from bench.plan_country_lookup import country_shapes
from tasks.geo.atlas import gazetteer
from tasks.geo.boundaries import country_codes
from tasks.geo.labels import labels_of

COUNT, ASKED = 1_000_000, 20_000
GOAL_TIMES, GOAL_S = 20.0, 180.0


def points() -> tuple[np.ndarray, np.ndarray]:
    """Around towns, half within a few kilometres, half within tens: where pictures are taken."""
    random = np.random.default_rng(5)
    towns = gazetteer()
    which = random.integers(0, towns.height, COUNT)
    spread = np.where(random.random(COUNT) < 0.5, 0.03, 0.3)
    lat = towns["lat"].to_numpy()[which] + random.normal(0, 1, COUNT) * spread
    lon = towns["lon"].to_numpy()[which] + random.normal(0, 1, COUNT) * spread
    return np.clip(lat, -90, 90), np.clip(lon, -180, 180)


def refuse(*_: Any) -> None:
    raise AssertionError("a label asked the network")


def main() -> int:
    import reverse_geocode
    import shapely

    lat, lon = points()
    opened, socket.socket.connect = socket.socket.connect, refuse  # type: ignore[method-assign]
    try:
        begin = time.perf_counter()
        labels_of(lat[:1000], lon[:1000])
        ready_s = time.perf_counter() - begin
        begin, worked = time.perf_counter(), time.process_time()
        ours = labels_of(lat, lon)
        ours_s, ours_cpu_s = time.perf_counter() - begin, time.process_time() - worked
    finally:
        socket.socket.connect = opened  # type: ignore[method-assign]

    pairs = list(zip(lat.tolist(), lon.tolist(), strict=True))
    reverse_geocode.get(pairs[0])  # reads its own data
    begin, worked = time.perf_counter(), time.process_time()
    for pair in pairs[:ASKED]:
        reverse_geocode.get(pair)
    one_s, one_cpu_s = ((now - then) * COUNT / ASKED for now, then in _since(begin, worked))
    begin, worked = time.perf_counter(), time.process_time()
    theirs = [found["country_code"] for found in reverse_geocode.search(pairs)]
    all_s, all_cpu_s = (now - then for now, then in _since(begin, worked))

    inside, truth = _countries(shapely, lat[: COUNT // 10], lon[: COUNT // 10])
    mine = ours["country_code"].to_numpy()[: COUNT // 10][inside]
    other = np.array(theirs[: COUNT // 10])[inside]
    right, right_other = float((mine == truth).mean()), float((other == truth).mean())
    named = {level: ours[level].is_not_null().mean() for level in ("country", "region", "city")}
    print(f"   {COUNT:,} points, named: " + ", ".join(f"{level} {share:.1%}" for level, share in named.items()))
    print(
        f"   geofix                      {ours_s:8.1f} s, country right {right:.2%}; atlas read once in {ready_s:.1f} s"
    )
    print(f"   reverse_geocode.get         {one_s:8.1f} s {one_s / ours_s:6.1f} x, from {ASKED:,} points")
    print(f"   reverse_geocode.search      {all_s:8.1f} s {all_s / ours_s:6.1f} x, country right {right_other:.2%}")
    cpu = {"geofix": ours_cpu_s, "get": one_cpu_s, "search": all_cpu_s}
    print("   CPU, whatever else the machine does: " + ", ".join(f"{name} {used:.1f} s" for name, used in cpu.items()))
    print(
        "   `get` is what a stage that works picture by picture calls. For a table at once one would call `search`, a"
    )
    print("   single query of a k-d tree; geofix asks up to four trees and the borders: 20 times that is out of reach.")
    return judge(
        [
            Goal("seconds, with reading the atlas", ours_s + ready_s, at_most=GOAL_S),
            Goal("times as fast as reverse_geocode, point by point", one_s / ours_s, at_least=GOAL_TIMES),
            Goal("share of countries right, more than reverse_geocode's", right - right_other, at_least=0.001),
        ]
    )


def _since(begin: float, worked: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Now and then, by the clock and in CPU."""
    return (time.perf_counter(), begin), (time.process_time(), worked)


def _countries(shapely: Any, lat: np.ndarray, lon: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which points lie inside a country's polygon, and which country that is, by shapely."""
    shapes = country_shapes()
    shapely.prepare(shapes)
    tree = shapely.STRtree(shapely.points(lon, lat))
    number = np.zeros(len(lat), dtype=np.int64)
    for country, shape in enumerate(shapes, start=1):
        number[tree.query(shape, predicate="intersects")] = country
    inside = np.flatnonzero(number)
    return inside, np.array(country_codes())[number[inside]]
