"""Filling the slots of a plan: seeded, on land, in the right country, apart from each other.

Slot s of a group (a country, or a city) tries, one after another, candidate points that depend only on the seed, the
group, s and the number of the try. The first candidate that is on its land, clear of cells of other splits and apart
from all places taken is its place. All slots try in rounds, lower slots first, so the result is the same however the
work is divided, and a larger plan begins with the smaller one but for places that came too close.

Slots that are still empty then, as on small islands, try on: they need only keep clear of the land of other splits, not
of their sea, and pass over candidates that are too close to places taken before.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tasks.geo.cell_split import Splits, keeps_clear, keeps_clear_of_land
from tasks.plan.cells import cell_number
from tasks.plan.spacing import Spacing

# Tries per round: few while most slots succeed, many for the last ones on small islands. 1,918 in all.
ROUNDS = tuple(min(2 ** (r // 2), 64) for r in range(40))
LATE_ROUNDS = (16, 32, 64, 128, 256, 512)  # for what is left
FIRST_LATE = sum(ROUNDS)  # the number of their first try
CHUNK = 250_000  # candidates looked at together: bounds the memory of a plan of millions
DECIMALS = 5  # about a metre
REFUSALS = ("placed", "off_country", "near_other_split", "too_close")

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Source(Protocol):
    """What candidates are drawn from. A row is an entry of the source's own table: a cell of a country, or a city."""

    def candidates(self, group: Ints, slot: Ints, attempt: Ints) -> tuple[Ints, Floats, Floats]:
        """Row, latitude and longitude of one candidate for each slot and try."""

    def is_inside(self, row: Ints, lat: Floats, lon: Floats) -> NDArray[np.bool_]:
        """Whether each point is on the land its row stands for."""

    def home_cell(self, row: Ints) -> Ints:
        """The cell whose split the places of a row must have."""


@dataclass(frozen=True)
class Slots:
    """The planned places: slot `slot` of group `group`; where it lies, once found."""

    group: Ints
    slot: Ints
    row: Ints  # of the source's table; -1 while no place is found
    lat: Floats
    lon: Floats
    refusal: NDArray[np.int8]  # why the last try failed, as place in REFUSALS
    late: NDArray[np.bool_]  # whether it was found in the late rounds


def empty_slots(group: Ints, quota: Ints) -> Slots:
    """As many slots as each group's quota says, the first slots of all groups first."""
    groups = np.repeat(group, quota).astype(np.int64)
    slot = np.concatenate([np.arange(q) for q in quota.tolist()]) if len(quota) else np.zeros(0, dtype=np.int64)
    order = np.lexsort((groups, slot))
    return Slots(
        group=groups[order],
        slot=slot[order],
        row=np.full(len(slot), -1),
        lat=np.full(len(slot), np.nan),
        lon=np.full(len(slot), np.nan),
        refusal=np.ones(len(slot), dtype=np.int8),
        late=np.zeros(len(slot), dtype=bool),
    )


def fill(slots: Slots, source: Source, splits: Splits, spacing_km: float, buffer_km: float) -> Slots:
    """A place for every slot that can have one; the others say what stood in the way."""
    spacing = Spacing(spacing_km)
    before = 0
    for tries in (*ROUNDS, *LATE_ROUNDS):
        waiting = np.flatnonzero(slots.row < 0)
        if not waiting.size:
            break
        filled = [
            _first_fitting(source, slots, part, before, tries, splits, buffer_km, spacing)
            for part in _chunks(waiting, tries)
        ]
        row, lat, lon = (np.concatenate(columns) for columns in zip(*filled, strict=True))
        fits = np.flatnonzero(row >= 0)
        taken = spacing.accept(lat[fits], lon[fits])
        slots.refusal[waiting[fits[~taken]]] = REFUSALS.index("too_close")
        done = fits[taken]
        slots.row[waiting[done]], slots.lat[waiting[done]], slots.lon[waiting[done]] = row[done], lat[done], lon[done]
        slots.refusal[waiting[done]] = 0
        slots.late[waiting[done]] = before >= FIRST_LATE
        before += tries
    return slots


def _chunks(waiting: Ints, tries: int) -> Iterator[Ints]:
    size = max(CHUNK // tries, 1)
    for begin in range(0, len(waiting), size):
        yield waiting[begin : begin + size]


def _first_fitting(
    source: Source,
    slots: Slots,
    part: Ints,
    before: int,
    tries: int,
    splits: Splits,
    buffer_km: float,
    spacing: Spacing,
) -> tuple[Ints, Floats, Floats]:
    """For each slot its first candidate of this round that fits the map and the splits; row -1 if none does."""
    attempt = np.tile(np.arange(before, before + tries), len(part))
    group, slot = np.repeat(slots.group[part], tries), np.repeat(slots.slot[part], tries)
    row, lat, lon = source.candidates(group, slot, attempt)
    lat, lon = np.round(lat, DECIMALS), np.round(lon, DECIMALS)
    # A step from a town may lead over the date line or a pole.
    on_earth = np.flatnonzero((np.abs(lat) <= 90) & (np.abs(lon) <= 180))
    ashore = on_earth[source.is_inside(row[on_earth], lat[on_earth], lon[on_earth])]
    own = splits[cell_number(lat[ashore], lon[ashore])] == splits[source.home_cell(row[ashore])]
    late = before >= FIRST_LATE
    rule = keeps_clear_of_land if late else keeps_clear
    clear = ashore[own & rule(lat[ashore], lon[ashore], splits, buffer_km)]
    free = clear[spacing.is_free(lat[clear], lon[clear])] if late else clear
    # How far the best candidate came: off its country, near another split, too close to a place.
    reached = np.full(len(row), REFUSALS.index("off_country"), dtype=np.int8)
    reached[ashore], reached[clear] = REFUSALS.index("near_other_split"), REFUSALS.index("too_close")
    slots.refusal[part] = reached.reshape(-1, tries).max(axis=1)
    good = np.zeros(len(row), dtype=bool)
    good[free] = True
    fits = good.reshape(-1, tries)
    best = np.arange(len(part)) * tries + fits.argmax(axis=1)
    return np.where(fits.any(axis=1), row[best], -1), lat[best], lon[best]
