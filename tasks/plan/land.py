"""The land of every country: how much of each one-degree cell it is, and its pieces as boxes."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tasks.geo.atlas import outlines
from tasks.geo.boundaries import country_codes, country_of_label
from tasks.geo.cell_split import CELL_COLUMNS, CELL_ROWS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Islets:
    """The box round every outer ring, by country number: those of country c are `first[c]:first[c + 1]`."""

    first: Ints
    south: Floats
    west: Floats
    north: Floats
    east: Floats

    def somewhere(self, country: Ints, u: Floats, v: Floats, w: Floats) -> tuple[Floats, Floats]:
        """Latitude and longitude in the box of one of the country's pieces, each piece as likely as another."""
        first, count = self.first[country], self.first[country + 1] - self.first[country]
        piece = first + np.minimum((u * count).astype(np.int64), count - 1)
        lat = self.south[piece] + v * (self.north[piece] - self.south[piece])
        return lat, self.west[piece] + w * (self.east[piece] - self.west[piece])


@cache
def islets() -> Islets:
    """The boxes of the embedded atlas."""
    shape = outlines()
    country = country_of_label()[1 + shape.ring_region]
    sides = [part.reduceat(of, shape.start[:-1]) for part in (np.minimum, np.maximum) for of in (shape.lat, shape.lon)]
    outer = np.flatnonzero(shape.ring_outer)
    outer = outer[np.argsort(country[outer], kind="stable")]
    south, west, north, east = (side[outer] for side in sides)
    return Islets(np.searchsorted(country[outer], np.arange(len(country_codes()) + 1)), south, west, north, east)


Lines = tuple[Floats, Floats, Floats, Floats]  # x and y of the begin, x and y of the end


# How much of a cell is land, as a font is drawn: the outline is cut at the edges of the cells, and a piece that runs
# north adds to its cell what lies between it and the cell's western edge, and to all cells west of it its height; one
# that runs south takes it away.


def land_share(country: Ints, cell: Ints) -> Floats:
    """For each country number and cell the share of the cell, in square degrees, that is the country's land."""
    shape = outlines()
    of_ring = country_of_label()[1 + shape.ring_region]
    of_point = np.repeat(of_ring, np.diff(shape.start))
    last = np.zeros(len(shape.lat), dtype=bool)
    last[shape.start[1:] - 1] = True  # from a ring's last corner no line leads to the next ring
    begin = np.flatnonzero(~last)
    begin = begin[np.argsort(of_point[begin], kind="stable")]
    first = np.searchsorted(of_point[begin], np.arange(len(country_codes()) + 1))
    x, y = shape.lon + 180, shape.lat + 90
    share = np.zeros(len(cell))
    for one in np.unique(country).tolist():
        line = begin[first[one] : first[one + 1]]
        mine = country == one
        share[mine] = _covered((x[line], y[line], x[line + 1], y[line + 1]))[cell[mine]]
    return np.clip(share, 0, 1)


def _covered(lines: Lines) -> Floats:
    """The share of every cell of the Earth inside closed outlines that run counter-clockwise."""
    x0, y0, x1, y1 = _turned(_cut(_turned(_cut(lines))))
    row = np.clip(np.floor((y0 + y1) / 2), 0, CELL_ROWS - 1).astype(np.int64)
    column = np.clip(np.floor((x0 + x1) / 2), 0, CELL_COLUMNS - 1).astype(np.int64)
    cell, up, size = row * CELL_COLUMNS + column, y1 - y0, CELL_ROWS * CELL_COLUMNS
    inside = np.bincount(cell, weights=up * ((x0 + x1) / 2 - column), minlength=size)
    height = np.bincount(cell, weights=up, minlength=size).reshape(CELL_ROWS, CELL_COLUMNS)
    east_of_it = np.cumsum(height[:, ::-1], axis=1)[:, ::-1] - height
    return np.asarray(inside + east_of_it.ravel())


def _turned(lines: Lines) -> Lines:
    x0, y0, x1, y1 = lines
    return y0, x0, y1, x1


def _cut(lines: Lines) -> Lines:
    """The same lines, cut wherever x is a whole number."""
    x0, y0, x1, y1 = lines
    low, high = np.minimum(x0, x1), np.maximum(x0, x1)
    cuts = np.maximum(np.ceil(high) - np.floor(low) - 1, 0).astype(np.int64)
    line = np.repeat(np.arange(len(x0)), cuts + 1)
    step = np.arange(len(line)) - np.repeat(np.cumsum(cuts + 1) - (cuts + 1), cuts + 1)
    west = np.where(step == 0, low[line], np.floor(low[line]) + step)
    east = np.where(step == cuts[line], high[line], np.floor(low[line]) + step + 1)
    forward = x1[line] >= x0[line]
    begin, end = np.where(forward, west, east), np.where(forward, east, west)
    wide = np.where(x1 == x0, 1.0, x1 - x0)[line]

    def y_at(x: Floats) -> Floats:
        return np.where(x == x1[line], y1[line], y0[line] + (y1 - y0)[line] * (x - x0[line]) / wide)

    upright = (x1 == x0)[line]
    return begin, np.where(upright, y0[line], y_at(begin)), end, np.where(upright, y1[line], y_at(end))
