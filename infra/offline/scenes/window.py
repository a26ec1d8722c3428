"""A rectangle of pixels on a UTM grid, and the wide-meshed net of points under it on which slow things are computed."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from infra.offline.scenes.projection import central_meridian, to_geographic, to_mercator, unbroken
from infra.offline.seeded_random import fraction, fractions, key_of, scrambled

NODE_M = 160  # nodes lie on multiples of this in every zone, so that overlapping tiles compute the same values
COARSEST_M = 640
_CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1))  # of a cell: (down, across)


@dataclass(frozen=True)
class Window:
    """`columns` x `rows` pixels of `step_m` metres; `left_m`, `top_m` are the outer edges of the first pixel."""

    zone: int
    south: bool
    left_m: float
    top_m: float
    step_m: float
    columns: int
    rows: int

    @property
    def node_m(self) -> int:
        """How far the nodes lie apart: farther where pixels are coarse, always a power of two times NODE_M."""
        return NODE_M if self.step_m <= 90 else 2 * NODE_M if self.step_m <= 180 else COARSEST_M

    @cached_property
    def node_index(self) -> tuple[int, int, int, int]:
        """(first easting, count, last northing, count) of the nodes, in steps of node_m, one more on every side."""
        first = int(self.left_m // self.node_m) - 1
        last = int((self.left_m + self.step_m * self.columns) // self.node_m) + 2
        low = int((self.top_m - self.step_m * self.rows) // self.node_m) - 1
        high = int(self.top_m // self.node_m) + 2
        return first, last - first + 1, high, high - low + 1

    @cached_property
    def nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """(easting, northing) of the nodes, rows from north to south."""
        first, wide, high, tall = self.node_index
        x, y = np.meshgrid(
            (first + np.arange(wide)) * float(self.node_m), (high - np.arange(tall)) * float(self.node_m)
        )
        return x, y

    @cached_property
    def node_degrees(self) -> tuple[np.ndarray, np.ndarray]:
        """(lat, lon) of the nodes."""
        return to_geographic(*self.nodes, self.zone, self.south)

    @cached_property
    def node_plane(self) -> tuple[np.ndarray, np.ndarray]:
        """Mercator (x, y) of the nodes, in metres, the same from every zone."""
        lat, lon = self.node_degrees
        return to_mercator(lat, unbroken(lon, central_meridian(self.zone)))

    @cached_property
    def plane(self) -> tuple[np.ndarray, np.ndarray]:
        """Mercator (x, y) of the pixels' centres, in metres."""
        x, y = self.node_plane
        return self.spread(x), self.spread(y)

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Values at the nodes, linearly between them at the pixels' centres."""
        first, _, high, _ = self.node_index
        at_x = (self.left_m + (np.arange(self.columns) + 0.5) * self.step_m) / self.node_m - first
        at_y = high - (self.top_m - (np.arange(self.rows) + 0.5) * self.step_m) / self.node_m
        i, j = at_x.astype(np.int64), at_y.astype(np.int64)
        fx, fy = (at_x - i).astype(values.dtype), (at_y - j).astype(values.dtype)[:, None]
        between = values[:, i] + (values[:, i + 1] - values[:, i]) * fx
        return np.asarray((between[j + 1] - between[j]) * fy + between[j])

    def soft(self, seed: int, salt: str, cell_m: float) -> np.ndarray:
        """Noise at the pixels' centres, its humps wide enough for the nodes: far quicker than pixel by pixel."""
        return self.spread(noise(seed, salt, *self.node_plane, cell_m))


class Cells:
    """Pairs of integers that lie close together, one per pixel: what is drawn for a cell is drawn once."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self._x0, self._y0 = int(x.min()), int(y.min())
        self._wide, self._tall = int(x.max()) - self._x0 + 1, int(y.max()) - self._y0 + 1
        self._at = (y - self._y0) * self._wide + (x - self._x0)

    def draw(self, seed: int, salt: str) -> np.ndarray:
        """A number in [0, 1) per cell."""
        return _table(seed, salt, self._x0, self._y0, self._wide, self._tall).ravel()

    def take(self, values: np.ndarray) -> np.ndarray:
        """Values of the cells, at the pixels."""
        return np.asarray(values.take(self._at))


def draw_pair(seed: int, salt: str, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two numbers in [0, 1) per pair of integers, however far apart they lie."""
    bits = scrambled(key_of(seed, salt) & 0xFFFFFFFF, (x << 28) ^ (y + (1 << 27)))
    unit = np.float32(2.0**-24)
    return (
        (bits >> np.uint64(40)).astype(np.float32) * unit,
        (bits >> np.uint64(16) & np.uint64(0xFFFFFF)).astype(np.float32) * unit,
    )


def draw_each(seed: int, salt: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A number in [0, 1) per pair of integers, however far apart they lie."""
    return fractions(key_of(seed, salt) & 0xFFFFFFFF, (x << 28) ^ (y + (1 << 27))).astype(np.float32)


def _table(seed: int, salt: str, x0: int, y0: int, wide: int, tall: int) -> np.ndarray:
    columns, rows = np.arange(x0, x0 + wide, dtype=np.int64), np.arange(y0, y0 + tall, dtype=np.int64)
    return draw_each(seed, salt, columns[None], rows[:, None])


def noise(seed: int, salt: str, x: np.ndarray, y: np.ndarray, cell_m: float) -> np.ndarray:
    """Smooth chance in [-1, 1] over the plane, with humps about `cell_m` wide; float32."""
    # Each layer lies at its own angle, else the eye sees the squares it is made of.
    turn = 2 * math.pi * fraction("turn", salt)
    across, up = math.cos(turn) / cell_m, math.sin(turn) / cell_m
    u, v = x * across + y * up, y * across - x * up
    x0, y0 = math.floor(u.min()), math.floor(v.min())
    u -= x0
    v -= y0
    i, j = u.astype(np.int32), v.astype(np.int32)  # positive now, so cutting off is rounding down
    wide, tall = int(i.max()) + 2, int(j.max()) + 2
    fu, fv = _ease((u - i).astype(np.float32)), _ease((v - j).astype(np.float32))
    if wide * tall > 4 * u.size:  # few points far apart: four draws each are fewer than all of the table's
        corners = [draw_each(seed, salt, i + np.int64(x0 + e), j + np.int64(y0 + f)) * 2 - 1 for f, e in _CORNERS]
    else:
        table = (_table(seed, salt, x0, y0, wide, tall) * 2 - 1).ravel()
        at = j * np.int32(wide) + i
        corners = [table.take(at + np.int32(f * wide + e)) for f, e in _CORNERS]
    upper, upper_right, lower, lower_right = corners
    upper = (upper_right - upper) * fu + upper
    lower = (lower_right - lower) * fu + lower
    return np.asarray((lower - upper) * fv + upper)


def _ease(t: np.ndarray) -> np.ndarray:
    """From 0 to 1 as t does, flat at either end."""
    return np.asarray((t * np.float32(-2) + np.float32(3)) * t * t)


def layers(seed: int, salt: str, x: np.ndarray, y: np.ndarray, cells_m: tuple[float, ...], fade: float) -> np.ndarray:
    """Noise of several sizes on top of each other, each `fade` times as strong as the one before; about [-1, 1]."""
    total = np.zeros(x.shape, dtype=np.float32)
    for k, cell in enumerate(cells_m):
        total += np.float32(fade**k) * noise(seed, f"{salt} {k}", x, y, cell)
    return total


def step_up(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """0 below `low`, 1 above `high`, smooth between."""
    return _ease(np.clip((values - np.float32(low)) * np.float32(1 / (high - low)), 0, 1))


def blend(base: np.ndarray, other: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Colours (rows x columns x 3) between two others: `base` where the share is 0, `other` where it is 1.

    The three channels lie one after another in memory, which makes NumPy several times quicker than pixel by pixel.
    """
    out = np.empty((3, *share.shape), dtype=np.float32).transpose(1, 2, 0)
    np.subtract(other, base, out=out, casting="same_kind")
    out *= share[..., None]
    out += base
    return out
