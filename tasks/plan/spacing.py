"""Keeping places apart."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from tasks.geo import EARTH_RADIUS_KM

Floats = NDArray[np.float64]


def _on_sphere(lat: Floats, lon: Floats) -> Floats:
    phi, theta = np.radians(lat), np.radians(lon)
    return np.column_stack([np.cos(phi) * np.cos(theta), np.cos(phi) * np.sin(theta), np.sin(phi)])


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
        points = _on_sphere(lat, lon)
        for tree in self._trees:
            taken &= ~np.isfinite(tree.query(points, distance_upper_bound=self._chord)[0])
        # Greedy in order: a point is turned away by an earlier point only if that one itself is taken in.
        open_ = np.flatnonzero(taken)
        tree = cKDTree(points[open_], balanced_tree=False)
        pairs = open_[tree.query_pairs(self._chord, output_type="ndarray")]
        pairs = np.sort(pairs, axis=1)
        for first, second in pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]:
            if taken[first]:
                taken[second] = False
        if taken.any():
            self._trees.append(cKDTree(points[taken], balanced_tree=False))
        return taken
