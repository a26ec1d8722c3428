"""Near-duplicates among 1,000,000 64-bit hashes within Hamming 6, beside a vectorised brute force.

Nine in ten hashes are random, one in ten is another hash with 0 to 9 bits flipped, so that there are pairs on both
sides of the limit. The brute force (NumPy, one hash against all at a time) is timed on `ASKED` hashes spread over all
and multiplied; its pairs are compared for those hashes. `--full` asks it for every hash, which takes hours.
"""

import sys
import time

import numpy as np

from bench.goals import Goal, judge
from tasks.imaging.near_hashes import near_pairs

COUNT, DISTANCE, ASKED = 1_000_000, 6, 4_000
GOAL_TIMES = 20.0


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


def main(full: bool = False) -> int:
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
    return judge(
        [
            Goal("times as fast as brute force", theirs_s / ours_s, at_least=GOAL_TIMES),
            Goal("pairs unlike", len(ours ^ theirs), at_most=0),
            Goal("pairs compared", len(theirs), at_least=100),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main(full="--full" in sys.argv))
