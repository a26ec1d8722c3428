"""Country of 1,000,000 random points, beside a shapely STRtree over the same polygons.

`python -m bench.plan_country_lookup --full` asks the STRtree for every point; by default it gets a tenth of them and
its time is multiplied, since it takes minutes.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import shapely

from bench.goals import Goal, judge
from tasks.geo.atlas import outlines
from tasks.geo.boundaries import country_codes, country_number, country_of_label, index

GOAL_TIMES = 10.0


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


def goals(times: float, unlike: int) -> list[Goal]:
    return [Goal("times as fast as the STRtree", times, at_least=GOAL_TIMES), Goal("answers unlike", unlike, at_most=0)]


def main(full: bool = False) -> int:
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
    return judge(goals(tree_s / ours_s, sum(unlike)))


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


if __name__ == "__main__":
    raise SystemExit(main(full="--full" in sys.argv))
