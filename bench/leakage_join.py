"""Pairs of 1,000,000 training and 100,000 evaluation points within 1 km, beside scikit-learn's haversine BallTree.

Half of the points are spread over the sphere, half lie around towns, where pictures are taken and neighbours are many.
The BallTree is built over the evaluation points and asked for every training point, as its documentation shows.
"""

import resource
import time

import numpy as np

from bench.goals import Goal, judge
from tasks.geo.atlas import gazetteer
from tasks.geo.distance import EARTH_RADIUS_KM
from tasks.geo.near import pairs_within

TRAIN, EVALUATION, RADIUS_KM = 1_000_000, 100_000, 1.0
GOAL_TIMES, GOAL_MB = 10.0, 2_000.0


def points(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Latitudes and longitudes, half of them around towns."""
    random = np.random.default_rng(seed)
    towns = gazetteer()
    which = random.integers(0, towns.height, count // 2)
    lat = np.concatenate(
        [np.degrees(np.arcsin(random.uniform(-1, 1, count - count // 2))), towns["lat"].to_numpy()[which]]
    )
    lon = np.concatenate([random.uniform(-180, 180, count - count // 2), towns["lon"].to_numpy()[which]])
    lat[count - count // 2 :] += random.normal(0, 0.02, count // 2)
    lon[count - count // 2 :] += random.normal(0, 0.02, count // 2)
    turn = random.permutation(count)
    return np.clip(lat[turn], -90, 90), np.clip(lon[turn], -180, 180)


def main() -> int:
    from sklearn.neighbors import BallTree

    (lat, lon), (other_lat, other_lon) = points(TRAIN, 1), points(EVALUATION, 2)
    begin = time.perf_counter()
    train, evaluation = pairs_within(lat, lon, other_lat, other_lon, RADIUS_KM)
    ours_s = time.perf_counter() - begin
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # before the rival takes its own

    begin = time.perf_counter()
    tree = BallTree(np.radians(np.column_stack([other_lat, other_lon])), metric="haversine")
    found = tree.query_radius(np.radians(np.column_stack([lat, lon])), RADIUS_KM / EARTH_RADIUS_KM)
    theirs_s = time.perf_counter() - begin
    sizes = np.array([len(one) for one in found])
    theirs = set((np.repeat(np.arange(TRAIN), sizes) * EVALUATION + np.concatenate(found)).tolist())
    ours = set((train * EVALUATION + evaluation).tolist())

    print(f"   {TRAIN:,} x {EVALUATION:,} points within {RADIUS_KM:g} km: {len(ours):,} pairs")
    print(f"   geofix      {ours_s:7.2f} s, {peak_mb:,.0f} MB at most in the process")
    print(f"   BallTree    {theirs_s:7.2f} s {theirs_s / ours_s:7.1f} x; pairs unlike: {len(ours ^ theirs)}")
    return judge(
        [
            Goal("times as fast as the BallTree", theirs_s / ours_s, at_least=GOAL_TIMES),
            Goal("pairs unlike", len(ours ^ theirs), at_most=0),
            Goal("pairs", len(ours), at_least=1),
            Goal("MB", peak_mb, at_most=GOAL_MB),
        ]
    )
