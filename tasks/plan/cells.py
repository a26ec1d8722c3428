"""The one-degree cells of every country, with their people, weights and towns (GeoAgent eq. 12)."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tasks.geo.atlas import gazetteer
from tasks.geo.boundaries import COLUMNS, country_codes, country_number, country_of_label, index
from tasks.geo.cell_split import CELL_COLUMNS, CELL_ROWS, CELLS, cell_corner, cell_number
from tasks.plan.land import land_share

PARTS = 10  # squares of the border index along a side of a cell

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

__all__ = ["CELLS", "CELL_COLUMNS", "CELL_ROWS", "PARTS", "Cells", "Ints", "cell_corner", "cell_number", "cells"]


@dataclass(frozen=True)
class Cells:
    """One row per country and cell it has land in, sorted by country number and cell number.

    Country c owns rows `first[c]:first[c + 1]`. The towns of row k are `town_lat[town_first[k]:town_first[k + 1]]`, and
    `town_sum` runs up their weights log(1 + people). `land` runs up, over the 100 squares of the cell, the share of
    the cell's area in squares that hold land of the country; `share` is the exact share of the cell that is its land.
    """

    country: Ints
    cell: Ints
    people: Floats
    first: Ints
    land: NDArray[np.float32]
    share: Floats
    town_first: Ints
    town_lat: Floats
    town_lon: Floats
    town_sum: Floats

    def weights(self, floor_people: float) -> Floats:
        """log(1 + P_c) for every row, P_c being the cell's people with the floor added.

        The floor is what a gazetteer misses in a whole cell of land; a rock in the sea, or the corner of a cell beyond
        a border, has its part of it. Where a country has no people, as may be outside a raster, its cells weigh the
        same.
        """
        weights = np.log1p(self.people + floor_people * self.share)
        empty = np.bincount(self.country, weights=weights)[self.country] == 0
        return np.where(empty, 1.0, weights)

    def row_at(self, country: Ints, lat: Floats, lon: Floats) -> Ints:
        """The row of each country and the cell of each point; another one of the table where there is none."""
        keys = self.country * CELLS + self.cell
        return np.minimum(np.searchsorted(keys, country * CELLS + cell_number(lat, lon)), len(keys) - 1)


def _country_squares() -> tuple[Ints, Ints]:
    """Every pair of a country and a border-index square that may hold its land."""
    lookup, country = index(), country_of_label()
    base = country[lookup.base]
    square = np.flatnonzero(base)
    # A crossed square holds, besides its reference point's country, those whose borders run through it.
    counts = np.diff(lookup.start)
    through = np.repeat(np.flatnonzero(lookup.crossed >= 0), counts)
    side = country[lookup.pieces.label]
    # The sides of a square come region by region: most repetitions stand next to each other.
    other = np.concatenate([[True], (np.diff(through) != 0) | (np.diff(side) != 0)])
    return np.concatenate([base[square], side[other]]), np.concatenate([square, through[other]])


@cache
def cells() -> Cells:
    """The cells of all countries, from the embedded atlas and gazetteer."""
    country, square = _country_squares()
    row, column = square // COLUMNS, square % COLUMNS
    cell = row // PARTS * CELL_COLUMNS + column // PARTS
    key = country * CELLS + cell
    there = np.zeros(len(country_codes()) * CELLS, dtype=bool)
    there[key] = True
    keys, at = np.flatnonzero(there), np.cumsum(there, dtype=np.int32)[key] - 1
    # Area of a square goes with the cosine of its latitude.
    area = np.cos(np.radians((row + 0.5) / PARTS - 90))
    land = np.zeros((len(keys), PARTS * PARTS), dtype=np.float32)
    land[at, row % PARTS * PARTS + column % PARTS] = area
    np.cumsum(land, axis=1, out=land)
    land /= land[:, -1:]

    towns = gazetteer()
    lat, lon = towns["lat"].to_numpy(), towns["lon"].to_numpy()
    people = towns["population"].to_numpy()
    codes = country_codes()
    number = np.searchsorted(np.array(codes), towns["country"].to_numpy().astype(str))
    number[np.array(codes)[np.minimum(number, len(codes) - 1)] != towns["country"].to_numpy()] = 0
    town_key = number * CELLS + cell_number(lat, lon)
    place = np.minimum(np.searchsorted(keys, town_key), len(keys) - 1)
    known = keys[place] == town_key
    counted = np.bincount(place[known], weights=people[known], minlength=len(keys)).astype(np.float64)
    # A place can only be drawn round a town that lies on its country's land as drawn; 2 % lie a little off the coast.
    ashore = np.flatnonzero(known & (country_number(lat, lon) == number))
    ashore = ashore[np.argsort(place[ashore], kind="stable")]
    return Cells(
        country=keys // CELLS,
        cell=keys % CELLS,
        people=counted,
        first=np.searchsorted(keys // CELLS, np.arange(len(codes) + 1)),
        land=land,
        share=land_share(keys // CELLS, keys % CELLS),
        town_first=np.searchsorted(place[ashore], np.arange(len(keys) + 1)),
        town_lat=lat[ashore],
        town_lon=lon[ashore],
        town_sum=np.concatenate([[0.0], np.cumsum(np.log1p(people[ashore]))]),
    )
