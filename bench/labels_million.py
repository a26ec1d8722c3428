"""Addresses of 1,000,000 points around towns, beside the `reverse_geocode` package, with every socket refused.

`reverse_geocode.get` answers one point, as a stage that works picture by picture asks it; it is timed on `ASKED` points
and multiplied. Its `search` takes all points at once and is shown beside it. Both give the nearest town of a plane of
degrees and that town's country. The right country of a point is that of the polygon it lies in, found by shapely,
independently of the lookup under test.

The country of 1,000,000 random points is compared with a shapely STRtree over the same polygons. `--full` asks the
STRtree for every point; by default it gets a tenth of them and its time is multiplied, since it takes minutes.
"""

import socket
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import shapely

from bench.goals import Goal, judge
from tasks.geo.atlas import gazetteer, outlines
from tasks.geo.boundaries import country_codes, country_number, country_of_label, index
from tasks.geo.labels import labels_of

GOAL_STRTREE = 10.0


def country_shapes() -> list[shapely.Geometry]:
    """One dissolved shape per country, in the order of `country_codes()` from 1 on."""
    shape = outlines()
    polygons: list[list[list[np.ndarray]]] = [[] for _ in country_codes()]
    for r, region in enumerate(shape.ring_region.tolist()):
        span = slice(shape.start[r], shape.start[r + 1])
        ring = np.column_stack([shape.lon[span], shape.lat[span]])
        of_country = polygons[country_of_label()[region + 1]]
        if shape.ring_outer[r]:
            of_country.append([ring])
        else:
            of_country[-1].append(ring)
    return [shapely.coverage_union_all([shapely.Polygon(p[0], p[1:]) for p in group]) for group in polygons[1:]]


@cache
def prepared_countries() -> dict[str, shapely.Geometry]:
    """The country polygons, ready to be asked."""
    by_code = dict(zip(country_codes()[1:], country_shapes(), strict=True))
    shapely.prepare(list(by_code.values()))
    return by_code


def country_goals(times: float, unlike: int) -> list[Goal]:
    return [
        Goal("times as fast as the STRtree", times, at_least=GOAL_STRTREE),
        Goal("answers unlike", unlike, at_most=0),
    ]


def compare_countries(full: bool) -> list[Goal]:
    count = 1_000_000
    random = np.random.default_rng(1)
    lat, lon = np.degrees(np.arcsin(random.uniform(-1, 1, count))), random.uniform(-180, 180, count)
    ready_s = _timed(index)
    ours_s = min(_timed(lambda: country_number(lat, lon)) for _ in range(3))
    ours = country_number(lat, lon)

    shapes = country_shapes()
    asked = count if full else count // 10
    begin = time.perf_counter()
    hit, which = shapely.STRtree(shapes).query(shapely.points(lon[:asked], lat[:asked]), predicate="intersects")
    tree_s = (time.perf_counter() - begin) * count / asked
    tree = np.zeros(asked, dtype=np.int64)
    tree[hit] = which + 1

    # What a careful user of shapely would do: prepare the countries and put the points into the tree instead.
    begin = time.perf_counter()
    shapely.prepare(shapes)
    points = shapely.STRtree(shapely.points(lon, lat))
    turned = np.zeros(count, dtype=np.int64)
    for number, shape in enumerate(shapes, start=1):
        turned[points.query(shape, predicate="intersects")] = number
    turned_s = time.perf_counter() - begin

    print(f"{count:,} points, {len(shapes)} countries, {len(outlines().lat):,} vertices")
    print(f"  geofix                          {ours_s:8.2f} s          index built once in {ready_s:.2f} s")
    unlike = [int((tree != ours[:asked]).sum()), int((turned != ours).sum())]
    scaled = "" if full else f", from {asked:,} points"
    print(f"  STRtree of countries            {tree_s:8.2f} s {tree_s / ours_s:7.1f} x  unlike: {unlike[0]}{scaled}")
    print(f"  STRtree of points, prepared     {turned_s:8.2f} s {turned_s / ours_s:7.1f} x  unlike: {unlike[1]}")
    return country_goals(tree_s / ours_s, sum(unlike))


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


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


def main(full: bool = False) -> int:
    import reverse_geocode

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

    inside, truth = _countries(lat[: COUNT // 10], lon[: COUNT // 10])
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
            *compare_countries(full),
        ]
    )


def _since(begin: float, worked: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Now and then, by the clock and in CPU."""
    return (time.perf_counter(), begin), (time.process_time(), worked)


def _countries(lat: np.ndarray, lon: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which points lie inside a country's polygon, and which country that is, by shapely."""
    shapes = country_shapes()
    shapely.prepare(shapes)
    tree = shapely.STRtree(shapely.points(lon, lat))
    number = np.zeros(len(lat), dtype=np.int64)
    for country, shape in enumerate(shapes, start=1):
        number[tree.query(shape, predicate="intersects")] = country
    inside = np.flatnonzero(number)
    return inside, np.array(country_codes())[number[inside]]


if __name__ == "__main__":
    raise SystemExit(main(full="--full" in sys.argv))
