"""The plan as a stage: quotas, then draws, then one row per place.

It works on whole columns in one process: a million places take seconds, and places keep their distance across
borders too, which no country could see to alone.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from schemas.settings.plan import PlanSettings
from tasks.atlas import countries
from tasks.boundaries import admin1_of, country_codes
from tasks.cell_split import SPLITS, rejoined, split_of_cells
from tasks.errors import GeofixError
from tasks.frame import ColumnStage, Inputs, digest
from tasks.geo import cell_of
from tasks.plan.cells import Cells, cell_corner, cell_number, cells
from tasks.plan.cities import choose_cities, draw_in_cities
from tasks.plan.draw import draw
from tasks.plan.population import raster_cells, raster_digest
from tasks.plan.quota import country_quotas
from tasks.plan.rounds import REFUSALS, Slots

logger = logging.getLogger("geofix.plan")


def _cell_names(cell: NDArray[np.int64]) -> NDArray[np.str_]:
    distinct, which = np.unique(cell, return_inverse=True)
    south, west = cell_corner(distinct)
    return np.array([cell_of(a, b) for a, b in zip(south.tolist(), west.tolist(), strict=True)], dtype=str)[which]


def plan_places(settings: PlanSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The places of the plan and the slots for which no place was found, with the reason."""
    return _in_cities(settings) if settings.mode == "cities" else _on_earth(settings)


def planned(settings: PlanSettings) -> Mapping[str, int]:
    """Places per country that the plan is to have: eq. 11, or the sum over the country's cities."""
    quotas = country_quotas(countries(), settings)
    if settings.mode == "world":
        return quotas
    sums = choose_cities(settings).group_by("country").agg(pl.col("quota").sum())
    return dict.fromkeys(quotas, 0) | dict(sums.iter_rows())


def plan_identity(settings: PlanSettings) -> dict[str, Any]:
    """What decides the places: of a raster what it says about the cells, wherever its file lies."""
    found = settings.identity()
    if settings.population_raster:
        found["population_raster"] = raster_digest(settings.population_raster)
    return found


def check(settings: PlanSettings) -> None:
    """Raise what is wrong with the settings and the files they name, before anything is written."""
    planned(settings)
    if settings.population_raster:
        raster_cells(settings.population_raster)


def _on_earth(settings: PlanSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    quotas = country_quotas(countries(), settings)
    table = raster_cells(settings.population_raster) if settings.population_raster else cells()
    if settings.population_raster:
        _tell_empty(table, quotas, settings.population_raster)
    slots = draw(table, quotas, settings)
    weight = table.weights(settings.floor_people)
    share = weight / np.bincount(table.country, weights=weight)[table.country]
    codes = np.array(country_codes())
    found = np.flatnonzero(slots.row >= 0)
    places = _places(slots, found, codes[slots.group[found]], settings)
    places = places.with_columns(
        weight=pl.Series(weight[slots.row[found]]), probability=pl.Series(share[slots.row[found]])
    )
    lost = np.flatnonzero(slots.row < 0)
    names = codes[slots.group[lost]].tolist()
    refusals = _refusals(slots, lost, names, [{"country": code, "quota": quotas[code]} for code in names])
    return places.sort("country", "place_id"), refusals


def _tell_empty(table: Cells, quotas: Mapping[str, int], path: str) -> None:
    """Say for which countries the raster is of no use."""
    people = np.bincount(table.country, weights=table.people, minlength=len(country_codes()))
    wanted = [code for code, quota in quotas.items() if quota]
    empty = [code for code in wanted if not people[country_codes().index(code)]]
    if empty:
        named = ", ".join(empty[:5]) + (", …" if len(empty) > 5 else "")
        logger.warning(
            f"plan.population_raster: {path} has nobody in {len(empty)} of {len(wanted)} planned countries ({named}): "
            "their cells count alike"
        )


def _in_cities(settings: PlanSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    cities = choose_cities(settings)
    slots = draw_in_cities(cities, settings)
    found, lost = np.flatnonzero(slots.row >= 0), np.flatnonzero(slots.row < 0)
    own = cities[slots.row[found]]
    places = _places(slots, found, own["country"].to_numpy().astype(str), settings, own["city_id"].to_list())
    places = places.with_columns(
        own["probability"],
        own["viewport_km"],
        weight=own["people"],
        city_id=own["city_id"].cast(pl.String),
        city=own["name"],
        city_lat=own["lat"],
        city_lon=own["lon"],
    )
    evidence = [
        {"country": country, "city": name, "city_id": str(city_id), "quota": quota}
        for country, name, city_id, quota in cities[slots.group[lost]]
        .select("country", "name", "city_id", "quota")
        .iter_rows()
    ]
    names = [f"{one['country']}-{one['city_id']}" for one in evidence]
    return places.sort("country", "place_id"), _refusals(slots, lost, names, evidence)


def _places(
    slots: Slots,
    found: NDArray[np.int64],
    country: NDArray[np.str_],
    settings: PlanSettings,
    city_ids: Sequence[int] | None = None,
) -> pl.DataFrame:
    """What every place has, whatever it was drawn from."""
    slot, lat, lon = slots.slot[found], slots.lat[found], slots.lon[found]
    cell = cell_number(lat, lon)
    group = [f"{c} {i}" for c, i in zip(country, city_ids, strict=True)] if city_ids is not None else country.tolist()
    parts = zip(group, slot.tolist(), lat.tolist(), lon.tolist(), strict=True)
    place_id = [hashlib.sha256(f"place {g} {s} {y:.5f} {x:.5f}".encode()).hexdigest()[:24] for g, s, y, x in parts]
    names = dict(countries().select("iso2", "name").iter_rows())
    return pl.DataFrame(
        {
            "id": place_id,
            "place_id": place_id,
            "country": country,
            "country_name": [names[c] for c in country.tolist()],
            "admin1": admin1_of(lat, lon),
            "cell": _cell_names(cell),
            "lat": lat,
            "lon": lon,
            "split": np.array(SPLITS)[split_of_cells(settings.seed, settings.split, settings.buffer_km)[cell]],
            "seed": np.full(len(found), settings.seed, dtype=np.int64),
            "plan_version": [digest("plan", _rules(slots, cell, settings), plan_identity(settings))] * len(found),
        }
    )


def _rules(slots: Slots, cell: NDArray[np.int64], settings: PlanSettings) -> int:
    """By which rules the places were drawn: 2 where small countries were given room (`tasks.cell_split`), else 1.

    A plan that did not need it is the same plan as before there was such a rule, and keeps its version.
    """
    parted = rejoined(settings.seed, settings.split, settings.buffer_km)
    return 2 if slots.late.any() or np.isin(cell, parted).any() else 1


def _refusals(
    slots: Slots, lost: NDArray[np.int64], groups: Sequence[str], evidence: Sequence[Mapping[str, Any]]
) -> pl.DataFrame:
    numbers = slots.slot[lost].tolist()
    return pl.DataFrame(
        {
            "id": [f"{group}-{slot:07d}" for group, slot in zip(groups, numbers, strict=True)],
            "reason": [f"no_place_{REFUSALS[r]}" for r in slots.refusal[lost]],
            "evidence_json": [json.dumps({**one, "slot": slot}) for one, slot in zip(evidence, numbers, strict=True)],
        },
        schema={"id": pl.String, "reason": pl.String, "evidence_json": pl.String},
    ).sort("id")


def compute(inputs: Inputs, settings: PlanSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Kept places and refused slots; together they are exactly M."""
    places, refusals = plan_places(settings)
    if not places.height:
        raise GeofixError("the plan found no place at all: lower plan.spacing_km or plan.buffer_km")
    return places, refusals


STAGE = ColumnStage(name="plan", reads=(), writes=("places",), compute=compute, identity=plan_identity)
