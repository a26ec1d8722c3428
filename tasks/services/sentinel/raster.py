"""A scene's file on a picture's grid: which tiles are needed, and each pixel of the picture from the right one.

Of the same zone and pixel size pixels are copied; of another zone or size they are resampled, at positions exact to a
hundredth of a pixel.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
from numpy.typing import NDArray

from tasks.services.sentinel.cog import Cog, Level, Pixels, Read, open_cog, read_tiles
from tasks.services.sentinel.grid import Grid, northing_m, same_zone, transformer
from tasks.services.sentinel.scenes import UnusableScene

BLOCK = 16  # pixels along a side of the squares for which positions are computed and tiles looked up
Mask = NDArray[np.bool_]
Rect = tuple[slice, slice]  # rows and columns of a grid
Maps = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True)
class OnGrid:
    """One level of a file, as it lies on a grid."""

    level: Level
    left_m: float
    top_m: float
    epsg: int
    grid: Grid
    read: Read

    @property
    def same_zone(self) -> bool:
        return self.epsg == self.grid.epsg

    @cached_property
    def shift(self) -> tuple[int, int] | None:
        """(columns, rows) from the level's first pixel to the grid's, if pixels can be copied; else None."""
        step_m = self.level.step_m
        columns, rows = (self.grid.left_m - self.left_m) / step_m, (self.top_m - self.grid.top_m) / step_m
        near = max(abs(columns - round(columns)), abs(rows - round(rows))) < 1e-6
        if self.same_zone and abs(step_m - self.grid.step_m) < 1e-9 and near:
            return round(columns), round(rows)
        return None

    def _positions(self, columns: NDArray[np.float64], rows: NDArray[np.float64]) -> Maps:
        """Where middles of the grid's pixels lie on the level, in its pixels from its outer corner."""
        across, down = np.meshgrid(columns + 0.5, rows + 0.5)
        x, y = self.grid.left_m + across * self.grid.step_m, self.grid.top_m - down * self.grid.step_m
        if not self.same_zone:
            x, y = transformer(self.grid.epsg, self.epsg).transform(x, y)
        return (x - self.left_m) / self.level.step_m, (self.top_m - y) / self.level.step_m

    @cached_property
    def _nodes(self) -> Maps:
        """Positions of every BLOCK-th pixel, and of one beyond the last."""
        at = np.arange(-(-self.grid.size // BLOCK) + 1, dtype=np.float64) * BLOCK
        return self._positions(at, at)

    def tiles(self, blocks: Mask) -> list[int]:
        """The tiles that hold what the grid needs, for each of its blocks."""
        level = self.level
        if self.shift is not None:
            # To the pixel: a grid that begins with a tile must not fetch the tile before.
            first = np.arange(blocks.shape[0], dtype=np.int64) * BLOCK
            last = np.minimum(first + BLOCK, self.grid.size) - 1
            low_u, high_u = first + self.shift[0], last + self.shift[0]
            low_v, high_v = first + self.shift[1], last + self.shift[1]
            spans = [np.broadcast_to(part[None], blocks.shape) for part in (low_u, high_u)]
            spans += [np.broadcast_to(part[:, None], blocks.shape) for part in (low_v, high_v)]
        else:
            spans = []
            for nodes in self._nodes:
                corners = np.stack([nodes[:-1, :-1], nodes[1:, :-1], nodes[:-1, 1:], nodes[1:, 1:]])
                # One more on either side: a pixel between four others is made of all of them.
                spans += [np.floor(corners.min(axis=0)) - 1, np.ceil(corners.max(axis=0))]
        sizes = (level.tile_width, level.tile_width, level.tile_height, level.tile_height)
        ends = (level.width, level.width, level.height, level.height)
        inside = (spans[1] >= 0) & (spans[0] < ends[0]) & (spans[3] >= 0) & (spans[2] < ends[2])
        chosen = [
            (np.clip(span, 0, end - 1) // size).astype(np.int64)[blocks & inside]
            for span, size, end in zip(spans, sizes, ends, strict=True)
        ]
        numbers: set[int] = set()
        for left, right, upper, lower in {tuple(row) for row in np.stack(chosen, axis=1).tolist()}:
            numbers |= {v * level.across + u for v in range(upper, lower + 1) for u in range(left, right + 1)}
        return sorted(numbers)

    async def pixels(self, blocks: Mask, rect: Rect, *, nearest: bool = False) -> Pixels:
        """The file's numbers on a part of the grid: all that the needed tiles show of it, 0 elsewhere."""
        tiles = self.tiles(blocks)
        if not tiles:
            shape = (rect[0].stop - rect[0].start, rect[1].stop - rect[1].start)
            bands = (self.level.bands,) if self.level.bands > 1 else ()
            return np.zeros(shape + bands, self.level.dtype.newbyteorder("="))
        window = self._window(tiles)
        held = await read_tiles(self.read, self.level, tiles, window)
        if self.shift is not None or (nearest and self.same_zone):
            return self._picked(held, window, rect)
        return self._resampled(held, window, rect, nearest)

    def _window(self, tiles: list[int]) -> tuple[int, int, int, int]:
        """The part of the level that the tiles hold and the grid shows."""
        level = self.level
        columns, rows = [t % level.across for t in tiles], [t // level.across for t in tiles]
        u, v = self._nodes
        pad = 2
        return (
            max(min(columns) * level.tile_width, math.floor(u.min()) - pad, 0),
            max(min(rows) * level.tile_height, math.floor(v.min()) - pad, 0),
            min((max(columns) + 1) * level.tile_width, math.ceil(u.max()) + pad, level.width),
            min((max(rows) + 1) * level.tile_height, math.ceil(v.max()) + pad, level.height),
        )

    def _resampled(self, held: Pixels, window: tuple[int, int, int, int], rect: Rect, nearest: bool) -> Pixels:
        # OpenCV counts from the middle of the first pixel.
        maps = [
            _between(nodes - start - 0.5, rect)
            for nodes, start in zip(self._nodes, (window[0], window[1]), strict=True)
        ]
        how = cv2.INTER_NEAREST if nearest else cv2.INTER_LINEAR
        out: Pixels = cv2.remap(held, maps[0], maps[1], how, borderMode=cv2.BORDER_CONSTANT, borderValue=0)
        if nearest:
            return out
        # A pixel that is partly made of no data shows neither: it would be too dark.
        known = held if held.ndim == 2 else held.min(axis=2)
        whole = cv2.remap(
            (known > 0).astype(np.float32), maps[0], maps[1], how, borderMode=cv2.BORDER_CONSTANT, borderValue=0
        )
        out[whole < 0.9999] = 0
        return out

    def _picked(self, held: Pixels, window: tuple[int, int, int, int], rect: Rect) -> Pixels:
        """The nearest pixel of the same zone: a row and a column are looked up once for all."""
        down, across = (np.arange(part.start, part.stop, dtype=np.float64) for part in rect)
        u, v = self._positions(across, np.zeros(1))[0][0], self._positions(np.zeros(1), down)[1][:, 0]
        columns, rows = np.floor(u).astype(np.int64) - window[0], np.floor(v).astype(np.int64) - window[1]
        out = held[np.clip(rows, 0, held.shape[0] - 1)][:, np.clip(columns, 0, held.shape[1] - 1)]
        out[(rows < 0) | (rows >= held.shape[0])] = 0
        out[:, (columns < 0) | (columns >= held.shape[1])] = 0
        return out


def blocks_of(need: Mask) -> Mask:
    """Whether anything is needed in each square of BLOCK x BLOCK pixels."""
    starts = np.arange(0, need.shape[0], BLOCK)
    return np.logical_or.reduceat(np.logical_or.reduceat(need, starts, axis=0), starts, axis=1)


def all_blocks(grid: Grid) -> Mask:
    return np.ones((-(-grid.size // BLOCK),) * 2, dtype=np.bool_)


def whole(grid: Grid) -> Rect:
    return slice(0, grid.size), slice(0, grid.size)


def around(blocks: Mask, margin: int, size: int) -> Rect:
    """The part of a grid that holds all needed blocks, and `margin` blocks more on every side."""
    bounds = []
    for axis in (1, 0):
        at = np.flatnonzero(blocks.any(axis=axis))
        bounds.append(slice(max(0, int(at[0]) - margin) * BLOCK, min(size, (int(at[-1]) + 1 + margin) * BLOCK)))
    return bounds[0], bounds[1]


def _between(nodes: NDArray[np.float64], rect: Rect) -> NDArray[np.float32]:
    """Values at every BLOCK-th pixel as values at all: linear between, which is exact to far below a pixel."""
    (i, down), (j, across) = (
        (at // BLOCK, (at % BLOCK) / BLOCK) for at in (np.arange(part.start, part.stop) for part in rect)
    )
    wide = nodes[:, j] + (nodes[:, j + 1] - nodes[:, j]) * across
    return (wide[i] + (wide[i + 1] - wide[i]) * down[:, None]).astype(np.float32)


async def on_grid(read: Read, grid: Grid, said_epsg: int | None) -> OnGrid:
    """A file opened for a grid. `said_epsg` is what its item says, which the file must not contradict."""
    cog: Cog = await open_cog(read)
    epsg = cog.epsg if cog.epsg is not None else said_epsg
    if epsg is None or (said_epsg is not None and epsg != said_epsg):
        raise UnusableScene(f"the item says EPSG:{said_epsg}, the file EPSG:{cog.epsg}")
    if epsg // 100 not in (326, 327) or not 1 <= epsg % 100 <= 60:
        raise UnusableScene(f"EPSG:{epsg} is no UTM zone")
    if same_zone(epsg, grid.epsg):
        # Across the equator only the northing is counted otherwise: pixels are copied as on one side of it.
        return OnGrid(
            cog.level_for(grid.step_m), cog.left_m, northing_m(cog.top_m, epsg, grid.epsg), grid.epsg, grid, read
        )
    return OnGrid(cog.level_for(grid.step_m), cog.left_m, cog.top_m, epsg, grid, read)
