"""The plan as a stage: quotas, then draws, then one row per place.

It works on whole columns in one process: a million places take seconds, and places keep their distance across
borders too, which no country could see to alone.
"""

import hashlib
import json
from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from schemas.settings.plan import PlanSettings
from tasks.errors import GeofixError
from tasks.frame import ColumnStage, Inputs, digest
from tasks.geo import cell_of
from tasks.plan.atlas import countries
from tasks.plan.boundaries import admin1_of, country_codes
from tasks.plan.cells import Cells, cell_corner, cells
from tasks.plan.draw import REFUSALS, Slots, draw
from tasks.plan.population import raster_cells
from tasks.plan.quota import country_quotas
from tasks.plan.split import SPLITS, split_of_cells


def _cell_names(cell: NDArray[np.int64]) -> NDArray[np.str_]:
    distinct, which = np.unique(cell, return_inverse=True)
    south, west = cell_corner(distinct)
    return np.array([cell_of(a, b) for a, b in zip(south.tolist(), west.tolist(), strict=True)], dtype=str)[which]


def plan_places(settings: PlanSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The places of the plan and the slots for which no place was found, with the reason."""
    quotas = country_quotas(countries(), settings)
    table = raster_cells(settings.population_raster) if settings.population_raster else cells()
    slots = draw(table, quotas, settings)
    return _places(slots, table, settings), _refusals(slots, quotas)


def _places(slots: Slots, table: Cells, settings: PlanSettings) -> pl.DataFrame:
    found = np.flatnonzero(slots.row >= 0)
    row, country = slots.row[found], slots.country[found]
    weight = table.weights(settings.floor_people)
    per_country = np.bincount(table.country, weights=weight)
    code = np.array(country_codes())[country]
    slot, lat, lon = slots.slot[found], slots.lat[found], slots.lon[found]
    version = digest("plan", 1, settings.identity())
    names = dict(countries().select("iso2", "name").iter_rows())
    parts = zip(code.tolist(), slot.tolist(), lat.tolist(), lon.tolist(), strict=True)
    place_id = [hashlib.sha256(f"place {c} {s} {y:.5f} {x:.5f}".encode()).hexdigest()[:24] for c, s, y, x in parts]
    return pl.DataFrame(
        {
            "id": place_id,
            "place_id": place_id,
            "country": code,
            "country_name": [names[c] for c in code.tolist()],
            "admin1": admin1_of(lat, lon),
            "cell": _cell_names(table.cell[row]),
            "lat": lat,
            "lon": lon,
            "weight": weight[row],
            "probability": weight[row] / per_country[country],
            "split": np.array(SPLITS)[split_of_cells(settings.seed, settings.split)[table.cell[row]]],
            "seed": np.full(len(found), settings.seed, dtype=np.int64),
            "plan_version": [version] * len(found),
        }
    ).sort("country", "place_id")


def _refusals(slots: Slots, quotas: Mapping[str, int]) -> pl.DataFrame:
    lost = np.flatnonzero(slots.row < 0)
    codes = [country_codes()[c] for c in slots.country[lost]]
    numbers = slots.slot[lost].tolist()
    return pl.DataFrame(
        {
            "id": [f"{code}-{slot:07d}" for code, slot in zip(codes, numbers, strict=True)],
            "reason": [f"no_place_{REFUSALS[r]}" for r in slots.refusal[lost]],
            "evidence_json": [
                json.dumps({"country": code, "slot": slot, "quota": quotas[code]})
                for code, slot in zip(codes, numbers, strict=True)
            ],
        },
        schema={"id": pl.String, "reason": pl.String, "evidence_json": pl.String},
    ).sort("id")


def compute(inputs: Inputs, settings: PlanSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Kept places and refused slots; together they are exactly M."""
    places, refusals = plan_places(settings)
    if not places.height:
        raise GeofixError("the plan found no place at all: lower plan.spacing_km or plan.buffer_km")
    return places, refusals


STAGE = ColumnStage(name="plan", reads=(), writes=("places",), compute=compute)
