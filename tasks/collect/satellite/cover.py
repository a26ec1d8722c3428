"""Which scenes to look at first: the fewest whose footprints cover a picture, and of those the least cloudy.

Footprints are only a hint, drawn with few corners. What a scene really shows is known when its classes are read.
"""

import functools
import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import shapely
from numpy.typing import NDArray

from tasks.services.sentinel.grid import Grid, same_zone, unwrapped
from tasks.services.sentinel.scenes import Scene

POINTS = 33  # along a side of the picture, from edge to edge: where footprints are compared
MOST_COMBINATIONS = 60_000  # of footprints that are tried one by one; more, and they are chosen greedily
OTHER_ZONE_PERCENT = 2.0
Points = NDArray[np.bool_]


@dataclass(frozen=True)
class Candidate:
    """A scene and the points of the picture its footprint covers, as the bits of a number."""

    scene: Scene
    points: int
    other_zone: bool = False

    @property
    def cost(self) -> float:
        """Cloud percent; a scene that has to be resampled must be clearer than one that is copied."""
        return self.scene.cloud_percent + (OTHER_ZONE_PERCENT if self.other_zone else 0.0)

    @property
    def order(self) -> tuple[float, float, str]:
        """Least cloudy first, then newest, then by id."""
        return self.cost, -self.scene.captured_at.timestamp(), self.scene.id


def candidates(scenes: Sequence[Scene], grid: Grid) -> list[Candidate]:
    """The scenes whose footprint covers some of the picture, best first."""
    at = _pixels(grid.size) + 0.5
    columns, rows = (part.ravel() for part in np.meshgrid(at, at))
    lat, lon = grid.degrees(columns, rows)
    near = grid.centre()[1]
    lon = unwrapped(lon, near)
    known: dict[str, int] = {}
    scored = []
    for scene in scenes:
        key = repr(scene.geometry)  # every pass of an orbit over a tile has the same
        if key not in known:
            known[key] = as_bits(shapely.contains_xy(scene.footprint(near), lon, lat))
        if known[key]:
            other_zone = scene.epsg is not None and not same_zone(scene.epsg, grid.epsg)
            scored.append(Candidate(scene, known[key], other_zone))
    return sorted(scored, key=lambda candidate: candidate.order)


def as_bits(points: Points) -> int:
    return int.from_bytes(np.packbits(points.ravel()).tobytes(), "big")


def sampled(mask: Points) -> int:
    """A picture's mask at the points, as bits."""
    at = _pixels(mask.shape[0])
    return as_bits(mask[np.ix_(at, at)])


def touched(mask: Points) -> int:
    """The points around which anything of a mask lies, as bits: a strip may pass between them."""
    at = _pixels(mask.shape[0])
    starts = np.concatenate([[0], (at[1:] + at[:-1] + 1) // 2])
    rows = np.logical_or.reduceat(mask, starts, axis=0)
    return as_bits(np.logical_or.reduceat(rows, starts, axis=1))


def _pixels(size: int) -> NDArray[np.int64]:
    return np.linspace(0, size - 1, min(POINTS, size)).astype(np.int64)


def covers(candidates: Sequence[Candidate], day_cost: float, most: int) -> list[tuple[Candidate, ...]]:
    """Sets of as few scenes as possible that cover all that can be covered, best first."""
    if not candidates:
        return []
    everything = 0
    for candidate in candidates:
        everything |= candidate.points
    sets: dict[tuple[str, ...], tuple[float, tuple[Candidate, ...]]] = {}
    for shape in _fewest(candidates, everything):
        for chosen in _fillings(candidates, shape, everything, day_cost):
            names = tuple(sorted(candidate.scene.id for candidate in chosen))
            sets.setdefault(names, (_cost(chosen, day_cost), chosen))

    def order(cover: tuple[float, tuple[Candidate, ...]]) -> tuple[float, float, list[str]]:
        newest = max(part.scene.captured_at.timestamp() for part in cover[1])
        return cover[0], -newest, sorted(part.scene.id for part in cover[1])

    return [chosen for _, chosen in sorted(sets.values(), key=order)[:most]]


def _fewest(candidates: Sequence[Candidate], everything: int) -> list[tuple[int, ...]]:
    """Combinations of footprints, as few as possible, that cover everything."""
    unique = sorted({candidate.points for candidate in candidates}, key=lambda points: (-points.bit_count(), points))
    # A footprint inside another never makes a smaller set possible.
    largest = [a for i, a in enumerate(unique) if not any(a & ~b == 0 for b in unique[:i])]
    tried = 0
    for count in range(1, len(largest) + 1):
        shapes = []
        for shape in itertools.combinations(largest, count):
            tried += 1
            if tried > MOST_COMBINATIONS:
                return [_greedily(largest, everything)]
            if _union(shape) == everything:
                shapes.append(shape)
        if shapes:
            return shapes
    raise AssertionError("all footprints together cover what they cover")


def _greedily(largest: Sequence[int], everything: int) -> tuple[int, ...]:
    chosen: list[int] = []
    missing = everything
    while missing:
        best = max(largest, key=lambda points: (points & missing).bit_count())
        chosen.append(best)
        missing &= ~best
    return tuple(chosen)


def _fillings(
    candidates: Sequence[Candidate], shape: tuple[int, ...], everything: int, day_cost: float
) -> list[tuple[Candidate, ...]]:
    """For every scene that can stand first in a combination of footprints: it, with those that go best with it."""
    order = sorted(shape, key=lambda points: (-points.bit_count(), points))
    inside = [[candidate for candidate in candidates if candidate.points & ~points == 0] for points in order]
    results = []
    for first in inside[0]:
        chosen: list[Candidate] = []
        for k, group in enumerate(inside):
            # A scene may stand for a footprint if it covers what the others, those still to come included, leave open.
            open_points = everything & ~_union([candidate.points for candidate in chosen] + order[k + 1 :])
            fitting = [
                candidate for candidate in ([first] if k == 0 else group) if open_points & ~candidate.points == 0
            ]
            if not fitting:
                break  # the first one is too small; each footprint's own scenes fit always
            chosen.append(
                min(fitting, key=lambda option: (option.cost + day_cost * _days(option, first), option.order))
            )
        else:
            results.append(tuple(chosen))
    return results


def _cost(chosen: Sequence[Candidate], day_cost: float) -> float:
    """Cloud percent of a set, by the points each scene would show, and what the days between its scenes are worth."""
    seen, total = 0, 0.0
    for candidate in chosen:
        total += candidate.cost * (candidate.points & ~seen).bit_count()
        seen |= candidate.points
    dates = [candidate.scene.captured_at for candidate in chosen]
    return total / max(1, seen.bit_count()) + day_cost * ((max(dates) - min(dates)) / timedelta(days=1))


def next_best(
    candidates: Sequence[Candidate], missing: int, main: Scene, day_cost: float, tried: set[str]
) -> Candidate | None:
    """The scene most likely to show what is still missing."""

    def promise(candidate: Candidate) -> float:
        share = (candidate.points & missing).bit_count() / max(1, missing.bit_count())
        days = abs(candidate.scene.captured_at - main.captured_at) / timedelta(days=1)
        return share * (100.0 - candidate.cost) - day_cost * days

    left = [candidate for candidate in candidates if candidate.scene.id not in tried and candidate.points & missing]
    return min(left, key=lambda option: (-promise(option), option.order), default=None)


def _union(shape: Sequence[int]) -> int:
    return functools.reduce(operator.or_, shape, 0)


def _days(candidate: Candidate, other: Candidate) -> float:
    return abs(candidate.scene.captured_at - other.scene.captured_at) / timedelta(days=1)
