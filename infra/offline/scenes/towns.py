"""Towns as a satellite sees them: how built-up the ground is around gazetteer towns, and the roads between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from PIL import Image, ImageDraw
from scipy.spatial import cKDTree

from infra.offline.gazetteer import gazetteer
from infra.offline.scenes.projection import to_utm
from infra.offline.scenes.tiles import SIZE_M, Tile
from infra.offline.scenes.window import Window
from infra.offline.seeded_random import fraction

_PEOPLE_PER_KM2 = 3000.0
_LARGEST_M = 24_000.0
_MARGIN_M = 80_000.0
_ROAD_M = 40_000.0
_MOST_BEND = 0.25  # of a road's length that it may deviate from the straight line


@dataclass(frozen=True)
class Towns:
    """Towns on and around a tile, in its UTM zone, and the roads between them."""

    x: np.ndarray
    y: np.ndarray
    radius_m: np.ndarray
    roads: tuple[tuple[float, np.ndarray], ...]  # (width in m, corners)

    @cached_property
    def road_bounds(self) -> tuple[np.ndarray, ...]:
        """(left, low, right, high) of every road."""
        lines = np.array([line for _, line in self.roads])
        return *lines.min(axis=1).T, *lines.max(axis=1).T


@lru_cache(maxsize=16)
def towns_of(tile: Tile) -> Towns:
    """The towns that can show on a tile."""
    world = gazetteer()
    lat, lon = tile.outline
    pad = _MARGIN_M / 111_000
    wide = pad / max(0.1, math.cos(math.radians(min(85.0, float(np.abs(lat).max())))))
    east = (world.lon - lon.min() + wide) % 360.0
    rows = np.flatnonzero(
        (world.lat > lat.min() - pad) & (world.lat < lat.max() + pad) & (east < np.ptp(lon) + 2 * wide)
    )
    rows = rows[np.lexsort((world.ids[rows], -world.population[rows]))]
    x, y = to_utm(world.lat[rows], world.lon[rows], tile.zone, tile.south)
    people = np.maximum(world.population[rows], 300)
    radius = np.minimum(_LARGEST_M, 1000.0 * np.sqrt(people / (math.pi * _PEOPLE_PER_KM2)))
    return Towns(x, y, radius, tuple(_roads(x, y, people, world.ids[rows], tile)))


def _roads(
    x: np.ndarray, y: np.ndarray, people: np.ndarray, ids: np.ndarray, tile: Tile
) -> list[tuple[float, np.ndarray]]:
    """Each town is joined to the two nearest larger ones by a road that bends a little."""
    if len(x) < 2:
        return []
    spots = np.stack([x, y], axis=1)
    near, found = cKDTree(spots).query(spots, k=min(24, len(x)), distance_upper_bound=_ROAD_M)
    # Towns are ordered by size: a smaller number is a larger town.
    larger = (found < np.arange(len(x))[:, None]) & np.isfinite(near)
    small, which = np.nonzero(larger & (np.cumsum(larger, axis=1) <= 2))
    large = found[small, which]
    # Only roads that may come through the tile: most towns lie in its wide margin.
    bend_m = _MOST_BEND * np.hypot(*(spots[large] - spots[small]).T)
    low, high = np.minimum(spots[small], spots[large]), np.maximum(spots[small], spots[large])
    outside = (
        (high[:, 0] + bend_m < tile.left_m)
        | (low[:, 0] - bend_m > tile.left_m + SIZE_M)
        | (high[:, 1] + bend_m < tile.top_m - SIZE_M)
        | (low[:, 1] - bend_m > tile.top_m)
    )
    roads = []
    t = np.linspace(0, 1, 9)[:, None]
    waves = [np.sin((k + 1) * math.pi * t) / (k + 1) for k in range(3)]
    for a, b in zip(small[~outside].tolist(), large[~outside].tolist(), strict=True):
        ahead = spots[b] - spots[a]
        bends = sum((fraction("road", ids[a], ids[b], k) - 0.5) * wave for k, wave in enumerate(waves))
        line = spots[a] + ahead * t + np.array([-ahead[1], ahead[0]]) * bends * 0.25
        roads.append((22.0 if people[a] > 20_000 else 14.0 if people[a] > 3000 else 9.0, line))
    return roads


def built_up(towns: Towns, window: Window, wobble: np.ndarray) -> np.ndarray:
    """How urban the nodes are, 0 to 1: near 1 in a centre, about a third at the edge of the town; `wobble` frays it."""
    x, y = window.nodes
    open_land = np.ones(x.shape, dtype=np.float32)
    reaches = towns.radius_m * 2.6
    near = (towns.x + reaches >= x[0, 0]) & (towns.x - reaches <= x[0, -1])
    near &= (towns.y + reaches >= y[-1, 0]) & (towns.y - reaches <= y[0, 0])
    for number in np.flatnonzero(near).tolist():
        at_x, at_y, radius, reach = towns.x[number], towns.y[number], towns.radius_m[number], reaches[number]
        first, last = np.searchsorted(x[0], (at_x - reach, at_x + reach))
        upper, lower = np.searchsorted(-y[:, 0], (-(at_y + reach), -(at_y - reach)))
        if first >= last or upper >= lower:
            continue
        part = slice(upper, lower), slice(first, last)
        far2 = ((x[part] - at_x) ** 2 + (y[part] - at_y) ** 2) / radius**2
        open_land[part] *= 1 - 0.96 * np.exp(-far2 * (1 + 0.7 * wobble[part])).astype(np.float32)
    return 1 - open_land


def draw_roads(towns: Towns, window: Window) -> np.ndarray | None:
    """How much of each pixel is road, 0 to 1; None when no road comes through or pixels are too coarse to show one."""
    if window.step_m > 45:
        return None
    picture = Image.new("L", (window.columns, window.rows))
    draw = ImageDraw.Draw(picture)
    if not towns.roads:
        return None
    left, low, right, high = towns.road_bounds
    pad = 2 * window.step_m
    near = (right >= window.left_m - pad) & (left <= window.left_m + window.columns * window.step_m + pad)
    near &= (high >= window.top_m - window.rows * window.step_m - pad) & (low <= window.top_m + pad)
    for number in np.flatnonzero(near).tolist():
        width, line = towns.roads[number]
        spots = np.stack([line[:, 0] - window.left_m, window.top_m - line[:, 1]], axis=1) / window.step_m
        strength = min(255, round(255 * width / window.step_m))
        draw.line([tuple(s) for s in spots.tolist()], fill=strength, width=max(1, round(width / window.step_m)))
    filled = np.asarray(picture)
    return filled.astype(np.float32) / 255 if filled.any() else None
