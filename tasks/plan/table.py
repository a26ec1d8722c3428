"""The places of a plan as rows, and the slots that found none.

Rows are made a slice at a time, in the order they are kept in: texts of a million places as Python objects, or as
columns of the longest text's width, would take more memory than the table itself.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from schemas.settings.plan import PlanSettings
from tasks.geo.atlas import countries
from tasks.geo.boundaries import admin1_of
from tasks.geo.cell_split import SPLITS, split_of_cells
from tasks.geo.distance import cell_of
from tasks.plan.cells import cell_corner, cell_number
from tasks.plan.rounds import REFUSALS, Slots

SLICE = 50_000

Ints = NDArray[np.int64]


def place_rows(
    slots: Slots,
    placed: Ints,
    country: Callable[[Ints], pl.Series],
    more: Callable[[Ints], Mapping[str, pl.Series]],
    settings: PlanSettings,
    plan_version: str,
) -> pl.DataFrame:
    """A row for each of the `found` slots, sorted by country and id.

    `country` and `more` give the code and the columns of their own of some slots; a `city_id` among them is part of
    the place's name.
    """
    names = dict(countries().select("iso2", "name").iter_rows())
    split = split_of_cells(settings.seed, settings.split, settings.buffer_km)
    name = pl.concat(
        [pl.DataFrame({"country": country(part), "id": _ids(slots, part, country, more)}) for part in _parts(placed)]
    )
    order = name.select(pl.arg_sort_by("country", "id")).to_series().to_numpy()
    rows = []
    for number, part in enumerate(_parts(placed[order])):
        lat, lon = slots.lat[part], slots.lon[part]
        cell = cell_number(lat, lon)
        own = name[order[number * SLICE :][:SLICE]]
        rows.append(
            pl.DataFrame(
                {
                    "id": own["id"],
                    "place_id": own["id"],
                    "country": own["country"],
                    "country_name": own["country"].replace_strict(names, return_dtype=pl.String),
                    "admin1": admin1_of(lat, lon),
                    "cell": _cell_names(cell),
                    "lat": lat,
                    "lon": lon,
                    "split": np.array(SPLITS)[split[cell]],
                    "seed": np.full(len(part), settings.seed, dtype=np.int64),
                    "plan_version": pl.repeat(plan_version, len(part), eager=True),
                    **more(part),
                }
            )
        )
    return pl.concat(rows)


def refusal_rows(
    slots: Slots, lost: Ints, groups: Sequence[str], evidence: Sequence[Mapping[str, Any]]
) -> pl.DataFrame:
    """A row for each of the `lost` slots, with what stood in the way."""
    numbers = slots.slot[lost].tolist()
    return pl.DataFrame(
        {
            "id": [f"{group}-{slot:07d}" for group, slot in zip(groups, numbers, strict=True)],
            "reason": [f"no_place_{REFUSALS[r]}" for r in slots.refusal[lost]],
            "evidence_json": [
                json.dumps({**facts, "slot": slot}) for facts, slot in zip(evidence, numbers, strict=True)
            ],
        },
        schema={"id": pl.String, "reason": pl.String, "evidence_json": pl.String},
    ).sort("id")


def _parts(placed: Ints) -> Iterator[Ints]:
    # Once at least: a plan without any place is a table without rows.
    return (placed[begin : begin + SLICE] for begin in range(0, max(len(placed), 1), SLICE))


def _ids(
    slots: Slots,
    part: Ints,
    country: Callable[[Ints], pl.Series],
    more: Callable[[Ints], Mapping[str, pl.Series]],
) -> pl.Series:
    group = country(part).to_list()
    if "city_id" in (own := more(part)):
        group = [f"{code} {city}" for code, city in zip(group, own["city_id"], strict=True)]
    parts = zip(group, *(column[part].tolist() for column in (slots.slot, slots.lat, slots.lon)), strict=True)
    ids = [hashlib.sha256(f"place {g} {s} {y:.5f} {x:.5f}".encode()).hexdigest()[:24] for g, s, y, x in parts]
    return pl.Series(ids, dtype=pl.String)


def _cell_names(cell: Ints) -> NDArray[np.str_]:
    distinct, which = np.unique(cell, return_inverse=True)
    south, west = cell_corner(distinct)
    return np.array([cell_of(a, b) for a, b in zip(south.tolist(), west.tolist(), strict=True)], dtype=str)[which]
