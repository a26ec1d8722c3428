"""All pairs of 64-bit hashes within a Hamming distance, exactly, for millions of hashes.

Multi-index hashing (Norouzi, Punjani and Fleet 2012) with combined blocks: a hash is cut into `d + 2` blocks, and two
hashes at most `d` bits apart agree in at least two of them. For every two blocks the hashes are sorted by these bits,
and each run of equal bits is compared within itself. Pairs that agree in other blocks too are counted once.
"""

from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Unsigned = NDArray[np.uint64]
Ints = NDArray[np.int64]
BITS = 64
MOST_DISTANCE = 12  # beyond it blocks are so short that sorting by two of them spares too little


def near_pairs(hashes: ArrayLike, distance: int) -> tuple[Ints, Ints]:
    """Row numbers i < j of every pair of hashes that differ in at most `distance` bits, sorted."""
    if not 0 <= distance <= MOST_DISTANCE:
        raise ValueError(f"distance: given {distance}, allowed 0 to {MOST_DISTANCE} bits")
    values = np.asarray(hashes, dtype=np.uint64).ravel()
    # Equal hashes are one hash: a thousand black pictures are one comparison, not half a million.
    distinct, of_row = np.unique(values, return_inverse=True)
    first, two = _distinct_pairs(distinct, distance)
    return _rows(of_row, len(distinct), first, two)


def _distinct_pairs(hashes: Unsigned, distance: int) -> tuple[Ints, Ints]:
    count = np.int64(len(hashes))
    if distance == 0 or count < 2:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    edges = np.linspace(0, BITS, distance + 3).round().astype(int)
    pairs: list[Ints] = []
    for first, second in combinations(range(distance + 2), 2):
        key = _bits(hashes, edges[first], edges[first + 1]) << np.uint64(edges[second + 1] - edges[second])
        key |= _bits(hashes, edges[second], edges[second + 1])
        key = key.astype(np.uint32)
        order = np.argsort(key, kind="stable")
        pairs.append(_in_runs(hashes[order], key[order], order, distance, count))
    both = np.unique(np.concatenate(pairs))
    return both // count, both % count


def _bits(hashes: Unsigned, low: int, high: int) -> Unsigned:
    return (hashes >> np.uint64(low)) & np.uint64((1 << (high - low)) - 1)


def _in_runs(hashes: Unsigned, key: NDArray[np.uint32], order: Ints, distance: int, count: np.int64) -> Ints:
    """Near pairs among neighbours with equal keys, as smaller row * count + larger row."""
    ends = np.flatnonzero(np.concatenate([key[1:] != key[:-1], [True]])) + 1
    sizes = np.diff(ends, prepend=0)
    left = np.repeat(ends, sizes) - np.arange(len(key))  # how many of its run stand from here on
    pairs = []
    alive = np.arange(len(key))
    for step in range(1, int(sizes.max())):
        alive = alive[left[alive] > step]
        if not alive.size:
            break
        near = np.bitwise_count(hashes[alive] ^ hashes[alive + step]) <= distance
        if near.any():
            first, two = order[alive[near]], order[alive[near] + step]
            pairs.append(np.minimum(first, two) * count + np.maximum(first, two))
    return np.concatenate(pairs) if pairs else np.empty(0, np.int64)


def _rows(of_row: Ints, distinct: int, first: Ints, two: Ints) -> tuple[Ints, Ints]:
    """Pairs of distinct hashes as pairs of rows, with all pairs of rows that share a hash."""
    rows = np.argsort(of_row, kind="stable")
    sizes = np.bincount(of_row, minlength=distinct)
    start = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    several = np.flatnonzero(sizes > 1)
    first, two = np.concatenate([first, several]), np.concatenate([two, several])
    if not first.size:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    count = sizes[first] * sizes[two]
    which = np.repeat(np.arange(len(first)), count)
    step = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    left = rows[start[first[which]] + step // sizes[two[which]]]
    right = rows[start[two[which]] + step % sizes[two[which]]]
    kept = (first[which] != two[which]) | (left < right)
    left, right = left[kept], right[kept]
    low, high = np.minimum(left, right), np.maximum(left, right)
    turn = np.lexsort((high, low))
    return low[turn], high[turn]
