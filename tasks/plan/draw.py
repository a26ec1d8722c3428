"""Drawing the places of a plan: seeded, on land, in the right country, apart from each other.

Slot s of a country tries, one after another, candidate points that depend only on the seed, the country, s and the
number of the try. The first candidate that is on the country's land, inside its cell, clear of cells of other splits
and apart from all places taken is its place. All slots try in rounds, lower slots first, so the result is the same
however the work is divided, and a larger plan begins with the smaller one but for places that came too close.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.settings.plan import PlanSettings
from tasks.geo import EARTH_RADIUS_KM
from tasks.plan.boundaries import country_codes, country_number
from tasks.plan.cells import PARTS, Cells, cell_corner, cell_number
from tasks.plan.chance import key, uniform
from tasks.plan.spacing import Spacing
from tasks.plan.split import keeps_clear, split_of_cells

# Tries per round: few while most slots succeed, many for the last ones on small islands. 1,918 in all.
ROUNDS = tuple(min(2 ** (r // 2), 64) for r in range(40))
TRIES_PER_CELL = 8  # after so many a slot draws another cell,
TOWN_TRIES = 6  # and the last ones of each lot leave the towns and take any land of the cell
CHUNK = 250_000  # candidates looked at together: bounds the memory of a plan of millions
DECIMALS = 5  # about a metre

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Slots:
    """The planned places: slot `slot` of country number `country`; where it lies, once found."""

    country: Ints
    slot: Ints
    row: Ints  # of the cell table; -1 while no place is found
    lat: Floats
    lon: Floats
    refusal: NDArray[np.int8]  # why the last try failed, as place in REFUSALS


REFUSALS = ("placed", "off_country", "near_other_split", "too_close")


@dataclass(frozen=True)
class _Chances:
    """What candidates are drawn from."""

    table: Cells
    settings: PlanSettings
    keys: NDArray[np.uint64]  # by country number
    reach: Floats  # running sum of cell weights, with a leading 0

    def candidates(self, country: Ints, slot: Ints, attempt: Ints) -> tuple[Ints, Floats, Floats]:
        """Cell row, latitude and longitude of one candidate for each slot and try."""
        table, keys = self.table, self.keys[country]
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
        return row, np.round(lat, DECIMALS), np.round(lon, DECIMALS)

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
    country = np.repeat([c for c, _ in wanted], [q for _, q in wanted]).astype(np.int64)
    slot = np.concatenate([np.arange(q) for _, q in wanted]) if wanted else np.zeros(0, dtype=np.int64)
    order = np.lexsort((country, slot))
    slots = Slots(
        country=country[order],
        slot=slot[order],
        row=np.full(len(slot), -1),
        lat=np.full(len(slot), np.nan),
        lon=np.full(len(slot), np.nan),
        refusal=np.ones(len(slot), dtype=np.int8),
    )
    chances = _Chances(
        table=table,
        settings=settings,
        keys=np.array([key("draw", settings.seed, code) for code in country_codes()]),
        reach=np.concatenate([[0.0], np.cumsum(table.weights(settings.floor_people))]),
    )
    splits = split_of_cells(settings.seed, settings.split)
    spacing = Spacing(settings.spacing_km)
    before = 0
    for tries in ROUNDS:
        waiting = np.flatnonzero(slots.row < 0)
        if not waiting.size:
            break
        rows, lats, lons = [], [], []
        for part in _chunks(waiting, tries):
            found = _first_fitting(chances, slots, part, before, tries, splits, settings.buffer_km)
            rows.append(found[0])
            lats.append(found[1])
            lons.append(found[2])
        row, lat, lon = np.concatenate(rows), np.concatenate(lats), np.concatenate(lons)
        fits = np.flatnonzero(row >= 0)
        taken = spacing.accept(lat[fits], lon[fits])
        slots.refusal[waiting[fits[~taken]]] = REFUSALS.index("too_close")
        done = fits[taken]
        slots.row[waiting[done]], slots.lat[waiting[done]], slots.lon[waiting[done]] = row[done], lat[done], lon[done]
        slots.refusal[waiting[done]] = 0
        before += tries
    return slots


def _chunks(waiting: Ints, tries: int) -> Iterator[Ints]:
    size = max(CHUNK // tries, 1)
    for begin in range(0, len(waiting), size):
        yield waiting[begin : begin + size]


def _first_fitting(
    chances: _Chances, slots: Slots, part: Ints, before: int, tries: int, splits: NDArray[np.int8], buffer_km: float
) -> tuple[Ints, Floats, Floats]:
    """For each slot its first candidate of this round that fits the map and the splits; row -1 if none does."""
    attempt = np.tile(np.arange(before, before + tries), len(part))
    country, slot = np.repeat(slots.country[part], tries), np.repeat(slots.slot[part], tries)
    row, lat, lon = chances.candidates(country, slot, attempt)
    # A step from a town may lead over the cell's edge, and over the date line or a pole.
    whole = np.flatnonzero((np.abs(lat) <= 90) & (np.abs(lon) <= 180))
    inside = whole[cell_number(lat[whole], lon[whole]) == chances.table.cell[row[whole]]]
    ashore = inside[country_number(lat[inside], lon[inside]) == country[inside]]
    clear = ashore[keeps_clear(lat[ashore], lon[ashore], splits, buffer_km)]
    near = np.zeros(len(row), dtype=bool)
    near[ashore] = True
    slots.refusal[part] = np.where(near.reshape(-1, tries).any(axis=1), 2, 1)
    good = np.zeros(len(row), dtype=bool)
    good[clear] = True
    fits = good.reshape(-1, tries)
    best = np.arange(len(part)) * tries + fits.argmax(axis=1)
    return np.where(fits.any(axis=1), row[best], -1), lat[best], lon[best]
