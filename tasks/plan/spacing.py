"""Keeping places apart."""

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tasks.geo.distance import EARTH_RADIUS_KM, on_sphere

if TYPE_CHECKING:
    from scipy.spatial import cKDTree

MANY_TREES = 8  # more are searched faster as one
BLOCK = 200_000  # points taken in together

Floats = NDArray[np.float64]


class Spacing:
    """The points accepted so far; takes in new ones that keep their distance."""

    def __init__(self, spacing_km: float) -> None:
        # The straight line through the Earth that belongs to the arc, a hair longer than rounding can matter.
        self._chord = 2 * math.sin(spacing_km / (2 * EARTH_RADIUS_KM)) * (1 + 1e-9) + 1e-12
        self._wanted = spacing_km > 0
        self._trees: list[cKDTree] = []

    def accept(self, lat: Floats, lon: Floats) -> NDArray[np.bool_]:
        """Which of the points are taken in: none near an earlier one, and of a close pair only the first."""
        taken = np.ones(len(lat), dtype=bool)
        if not self._wanted or not len(lat):
            return taken
        # One block after another is the same as all at once, but for the close pairs there are to hold in memory.
        for begin in range(0, len(lat), BLOCK):
            block = slice(begin, begin + BLOCK)
            # Neighbours in space side by side in memory: the trees are built and searched several times faster.
            order = np.lexsort((lon[block], np.floor(lat[block] * 2)))
            taken[begin + order] = self._accept(on_sphere(lat[block][order], lon[block][order]), order)
        return taken

    def is_free(self, lat: Floats, lon: Floats) -> NDArray[np.bool_]:
        """Which of the points keep their distance to all accepted ones."""
        free = np.ones(len(lat), dtype=bool)
        if not self._wanted or not len(lat) or not self._trees:
            return free
        if len(self._trees) > MANY_TREES:
            from scipy.spatial import cKDTree

            self._trees = [cKDTree(np.concatenate([tree.data for tree in self._trees]))]
        for tree in self._trees:
            free &= ~np.isfinite(tree.query(on_sphere(lat, lon), distance_upper_bound=self._chord)[0])
        return free

    def _accept(self, points: Floats, rank: NDArray[np.int64]) -> NDArray[np.bool_]:
        from scipy.spatial import cKDTree  # takes a quarter of a second: not where nothing is planned

        taken = np.ones(len(points), dtype=bool)
        for tree in self._trees:
            taken &= ~np.isfinite(tree.query(points, distance_upper_bound=self._chord)[0])
        free = np.flatnonzero(taken)
        tree = cKDTree(points[free])
        pairs = tree.query_pairs(self._chord, output_type="ndarray")
        earlier = rank[free[pairs[:, 0]]] < rank[free[pairs[:, 1]]]
        first, second = (np.where(earlier, pairs[:, i], pairs[:, 1 - i]) for i in (0, 1))
        chosen = _first_come(len(free), first, second)
        taken[free[~chosen]] = False
        if chosen.any():
            self._trees.append(tree if chosen.all() else cKDTree(points[taken]))
        return taken


def _first_come(count: int, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Who stays if of every close pair the later one goes, unless the earlier one has gone already.

    The same as going through the points one by one, but for all at once: in each step those stay that no undecided
    earlier neighbour threatens, and take their own later neighbours out.
    """
    stays = np.zeros(count, dtype=bool)
    undecided = np.ones(count, dtype=bool)
    while undecided.any():
        threatened = np.zeros(count, dtype=bool)
        threatened[second] = True
        winners = undecided & ~threatened
        stays |= winners
        undecided &= ~winners
        undecided[second[winners[first]]] = False
        alive = undecided[first] & undecided[second]
        first, second = first[alive], second[alive]
    return stays
