"""Drawing the places of a plan of the whole Earth: by country, cell and town (GeoAgent eq. 11 and 12)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.settings.plan import PlanSettings
from tasks.geo.boundaries import country_codes, country_number
from tasks.geo.cell_split import split_of_cells
from tasks.geo.distance import EARTH_RADIUS_KM
from tasks.geo.seeded_random import key, uniform
from tasks.plan.cells import PARTS, Cells, cell_corner, cell_number
from tasks.plan.land import Islets, islets
from tasks.plan.rounds import FIRST_LATE, Floats, Ints, Slots, empty_slots, fill

TRIES_PER_CELL = 8  # tries after which a slot draws another cell,
TOWN_TRIES = 6  # and the last ones of each lot leave the towns and take any land of the cell


@dataclass(frozen=True)
class _Chances:
    """The cells of all countries, as a source of candidates; a group is a country's number."""

    table: Cells
    settings: PlanSettings
    keys: NDArray[np.uint64]  # by country number
    reach: Floats  # running sum of cell weights, with a leading 0
    islets: Islets

    def is_inside(self, row: Ints, lat: Floats, lon: Floats) -> NDArray[np.bool_]:
        """Whether each point is in its row's cell and country: a step from a town may lead over the edge of either."""
        inside = cell_number(lat, lon) == self.table.cell[row]
        inside[inside] = country_number(lat[inside], lon[inside]) == self.table.country[row[inside]]
        return np.asarray(inside)

    def home_cell(self, row: Ints) -> Ints:
        """The row's own cell."""
        return self.table.cell[row]

    def candidates(self, group: Ints, slot: Ints, attempt: Ints) -> tuple[Ints, Floats, Floats]:
        """Cell row, latitude and longitude of one candidate for each slot and try.

        Every second late try is somewhere round a piece of the country's land, whichever: a drawn speck such as
        Vatican City is hardly ever met by looking over its cell.
        """
        late = (attempt >= FIRST_LATE) & (attempt % 2 == 1)
        row, lat, lon = self._by_cell(group, slot, attempt)
        if late.any():
            u = (uniform(self.keys[group[late]], slot[late], attempt[late], channel) for channel in (1, 2, 3))
            lat[late], lon[late] = self.islets.somewhere(group[late], *u)
            row[late] = self.table.row_at(group[late], lat[late], lon[late])
        return row, lat, lon

    def _by_cell(self, group: Ints, slot: Ints, attempt: Ints) -> tuple[Ints, Floats, Floats]:
        """A cell by its weight, and a point in it."""
        table, keys, country = self.table, self.keys[group], group
        lot = attempt // TRIES_PER_CELL
        low, high = self.reach[table.first[country]], self.reach[table.first[country + 1]]
        row = np.searchsorted(self.reach, low + uniform(keys, slot, lot, 0) * (high - low), side="right") - 1
        row = np.clip(row, table.first[country], table.first[country + 1] - 1)
        u = [uniform(keys, slot, attempt, channel) for channel in (1, 2, 3)]
        has_town = table.town_first[row + 1] > table.town_first[row]
        town = has_town & (attempt % TRIES_PER_CELL < TOWN_TRIES) & (self.settings.within_cell == "gazetteer")
        lat, lon = np.empty(len(row)), np.empty(len(row))
        lat[town], lon[town] = self._near_town(row[town], *(x[town] for x in u))
        lat[~town], lon[~town] = self._on_land(row[~town], *(x[~town] for x in u))
        return row, lat, lon

    def _near_town(self, row: Ints, u: Floats, v: Floats, w: Floats) -> tuple[Floats, Floats]:
        """Evenly in the disc of the jitter round a town, the town by log(1 + people)."""
        table = self.table
        first, last = table.town_first[row], table.town_first[row + 1]
        low, high = table.town_sum[first], table.town_sum[last]
        town = np.clip(np.searchsorted(table.town_sum, low + u * (high - low), side="right") - 1, first, last - 1)
        away = np.degrees(self.settings.jitter_km / EARTH_RADIUS_KM) * np.sqrt(v)
        turn = 2 * np.pi * w
        lat = table.town_lat[town] + away * np.cos(turn)
        lon = table.town_lon[town] + away * np.sin(turn) / np.maximum(np.cos(np.radians(table.town_lat[town])), 1e-6)
        return lat, lon

    def _on_land(self, row: Ints, u: Floats, v: Floats, w: Floats) -> tuple[Floats, Floats]:
        """Evenly over the squares of the cell that hold land of the country, by true area."""
        south, west = cell_corner(self.table.cell[row])
        square = np.minimum((self.table.land[row] <= u[:, None]).sum(axis=1), PARTS * PARTS - 1)
        low = np.radians(south + square // PARTS / PARTS)
        high = np.radians(south + (square // PARTS + 1) / PARTS)
        lat = np.degrees(np.arcsin(np.sin(low) + v * (np.sin(high) - np.sin(low))))
        return lat, west + (square % PARTS + w) / PARTS


def draw(table: Cells, quotas: Mapping[str, int], settings: PlanSettings) -> Slots:
    """A place for every slot that can have one; the others say what stood in the way."""
    number = {code: i for i, code in enumerate(country_codes())}
    wanted = [(number[code], quota) for code, quota in sorted(quotas.items()) if quota]
    slots = empty_slots(np.array([c for c, _ in wanted]), np.array([q for _, q in wanted], dtype=np.int64))
    chances = _Chances(
        table=table,
        settings=settings,
        keys=np.array([key("draw", settings.seed, code) for code in country_codes()]),
        reach=np.concatenate([[0.0], np.cumsum(table.weights(settings.floor_people))]),
        islets=islets(),
    )
    splits = split_of_cells(settings.seed, settings.split, settings.buffer_km)
    return fill(slots, chances, splits, settings.spacing_km, settings.buffer_km)
