"""What a search has seen, and the images on tiles that wait to be requested."""

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.collect.candidates import Kind

KINDS: tuple[Kind, Kind] = ("panorama", "photo")


@dataclass
class Seen:
    """What there was of one kind, for the record."""

    pictures: int = 0
    nearest_m: float | None = None
    too_small: int = 0

    def add(self, distances_m: NDArray[np.float64] | list[float]) -> None:
        if len(distances_m):
            nearest_m = float(min(distances_m))
            self.pictures += len(distances_m)
            self.nearest_m = nearest_m if self.nearest_m is None else min(nearest_m, self.nearest_m)


class TileCandidates:
    """Images seen on tiles, by the best score each can have; `looked_at` of a kind are requested at most."""

    def __init__(self, looked_at: int, at_once: int) -> None:
        self._at_once = at_once  # details a request
        self._lines: dict[Kind, list[tuple[float, str]]] = {kind: [] for kind in KINDS}
        self._left = dict.fromkeys(KINDS, looked_at)
        self._open: set[str] = set()  # whose kind their tile does not say: they stand in both lines
        self._asked: set[str] = set()  # of these

    def add(self, ids: list[str], scores_m: NDArray[np.float64], is_pano: NDArray[np.int8]) -> None:
        """Let images wait; `is_pano` is 1, 0, or -1 where the tile does not say."""
        is_open = is_pano == -1
        for kind, flag in zip(KINDS, (1, 0), strict=True):
            mine = np.flatnonzero((is_pano == flag) | is_open)
            self._lines[kind] += [(float(scores_m[k]), ids[k]) for k in mine]
            heapq.heapify(self._lines[kind])
        self._open.update(ids[k] for k in np.flatnonzero(is_open))

    def is_open(self, source_id: str) -> bool:
        """Whether its tile did not say which kind it is."""
        return source_id in self._open

    def best(self, kind: Kind) -> float | None:
        """The best score that one of them can have."""
        line = self._lines[kind]
        while line and line[0][1] in self._asked:  # as one of the other kind
            heapq.heappop(line)
        return line[0][0] if line else None

    def next_batch(self, kind: Kind) -> list[str]:
        """The most promising, for one request; none when enough were looked at."""
        batch: list[str] = []
        while len(batch) < min(self._at_once, self._left[kind]) and self.best(kind) is not None:
            batch.append(heapq.heappop(self._lines[kind])[1])
        self._left[kind] -= len(batch)
        self._asked |= self._open.intersection(batch)
        return batch

    def give_up(self, kind: Kind) -> int:
        """How many are left, none of which is looked at any more."""
        count = sum(name not in self._asked for _, name in self._lines[kind])
        self._lines[kind].clear()
        return count
