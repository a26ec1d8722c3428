"""Leaks between splits: points within 1 km beside scikit-learn's BallTree, near-duplicates beside a brute force.

1,000,000 training and 100,000 evaluation points are joined.
Half of the points are spread over the sphere, half lie around towns, where pictures are taken and neighbours are many.
The BallTree is built over the evaluation points and asked for every training point, as its documentation shows.

Near-duplicates are pairs among 1,000,000 64-bit hashes within Hamming 6. Nine in ten hashes are random, one in ten is
another hash with 0 to 9 bits flipped, so that there are pairs on both sides of the limit. The brute force (NumPy, one
hash against all at a time) is timed on `ASKED` hashes spread over all and multiplied; its pairs are compared for those
hashes. `--full` asks it for every hash, which takes hours.
"""

import resource
import sys
import time

import numpy as np

from bench.goals import Goal, judge
from tasks.geo.atlas import gazetteer
from tasks.geo.distance import EARTH_RADIUS_KM
from tasks.geo.near import pairs_within
from tasks.imaging.near_hashes import near_pairs

COUNT, DISTANCE, ASKED = 1_000_000, 6, 4_000
GOAL_HASHES = 20.0


def hashes(count: int) -> np.ndarray:
    random = np.random.default_rng(7)
    found = random.integers(0, 2**64, count, dtype=np.uint64)
    copies = random.choice(count, count // 10, replace=False)
    flipped = found[random.integers(0, count, len(copies))]
    for _ in range(9):  # a bit flipped twice is not flipped: 0 to 9 bits differ
        flip = random.random(len(copies)) < 0.6
        flipped = np.where(
            flip, flipped ^ (np.uint64(1) << random.integers(0, 64, len(copies), dtype=np.uint64)), flipped
        )
    found[copies] = flipped
    return found


def brute_force(given: np.ndarray, rows: np.ndarray) -> set[tuple[int, int]]:
    """Every pair of one of these rows with any row."""
    found = set()
    for row in rows.tolist():
        near = np.flatnonzero(np.bitwise_count(given ^ given[row]) <= DISTANCE)
        found |= {(min(row, other), max(row, other)) for other in near.tolist() if other != row}
    return found


def compare_hashes(full: bool) -> list[Goal]:
    given = hashes(COUNT)
    begin = time.perf_counter()
    one, two = near_pairs(given, DISTANCE)
    ours_s = time.perf_counter() - begin
    rows = np.arange(COUNT) if full else np.linspace(0, COUNT - 1, ASKED).astype(np.int64)
    begin = time.perf_counter()
    theirs = brute_force(given, rows)
    # A pair is met from both sides when all rows ask: half of the comparisons would do.
    theirs_s = (time.perf_counter() - begin) * COUNT / len(rows) / 2
    asked = np.zeros(COUNT, bool)
    asked[rows] = True
    mine = asked[one] | asked[two]
    ours = set(zip(one[mine].tolist(), two[mine].tolist(), strict=True))
    print(f"   {COUNT:,} hashes within {DISTANCE} bits: {len(one):,} pairs, {len(ours):,} of them of the rows asked")
    print(f"   geofix        {ours_s:9.1f} s")
    scaled = "" if full else f", from {len(rows):,} rows, half of the comparisons"
    print(f"   brute force   {theirs_s:9.1f} s {theirs_s / ours_s:7.1f} x; pairs unlike: {len(ours ^ theirs)}{scaled}")
    return [
        Goal("times as fast as brute force", theirs_s / ours_s, at_least=GOAL_HASHES),
        Goal("pairs unlike", len(ours ^ theirs), at_most=0),
        Goal("pairs compared", len(theirs), at_least=100),
    ]


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


def main(full: bool = False) -> int:
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
            *compare_hashes(full),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main(full="--full" in sys.argv))
