"""The plan as a stage: quotas, then draws, then one row per place.

It works on whole columns in one process: a million places take seconds, and places keep their distance across
borders too, which no country could see to alone.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from schemas.errors import InputError
from schemas.settings.plan import PlanSettings
from tasks.geo.boundaries import country_codes
from tasks.geo.cell_split import rejoined
from tasks.plan.cells import Ints, cell_number, cells
from tasks.plan.cities import choose_cities, draw_in_cities
from tasks.plan.draw import draw
from tasks.plan.population import raster_cells, raster_digest, tell_gaps
from tasks.plan.quota import country_quotas, country_table
from tasks.plan.roads import road_lengths, roads_digest, tell_countries_without_roads
from tasks.plan.rounds import Slots
from tasks.plan.table import place_rows, refusal_rows
from tasks.runtime.runner import ColumnStage, Inputs, digest


def plan_places(settings: PlanSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The places of the plan and the slots for which no place was found, with the reason."""
    return _in_cities(settings) if settings.mode == "cities" else _on_earth(settings)


def planned(settings: PlanSettings) -> Mapping[str, int]:
    """Places per country that the plan is to have: eq. 11, or the sum over the country's cities."""
    quotas = country_quotas(country_table(settings), settings)
    if settings.mode == "world":
        return quotas
    sums = choose_cities(settings).group_by("country").agg(pl.col("quota").sum())
    return dict.fromkeys(quotas, 0) | dict(sums.iter_rows())


def plan_identity(settings: PlanSettings) -> dict[str, Any]:
    """What decides the places: of a raster what it says about the cells, wherever its file lies."""
    fields = settings.identity()
    if settings.population_raster:
        fields["population_raster"] = raster_digest(settings.population_raster)
    if settings.roads:
        fields["roads"] = roads_digest(settings.roads)
    else:
        fields.pop("roads")  # a plan without such a file is the plan that it was before there was the setting
    return fields


def check(settings: PlanSettings) -> None:
    """Raise what is wrong with the settings and the files they name, before anything is written."""
    planned(settings)
    if settings.population_raster:
        raster_cells(settings.population_raster)
    if settings.roads:
        road_lengths(settings.roads)


def _on_earth(settings: PlanSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    quotas = country_quotas(country_table(settings), settings)
    table = raster_cells(settings.population_raster) if settings.population_raster else cells()
    if settings.population_raster:
        tell_gaps(settings.population_raster, [code for code, quota in quotas.items() if quota])
    if settings.roads:
        tell_countries_without_roads(settings.roads, list(quotas))
    slots = draw(table, quotas, settings)
    weight = table.weights(settings.floor_people)
    share = weight / np.bincount(table.country, weights=weight)[table.country]
    codes = pl.Series(country_codes())
    placed, lost = np.flatnonzero(slots.row >= 0), np.flatnonzero(slots.row < 0)

    def country(part: Ints) -> pl.Series:
        return codes.gather(slots.group[part])

    def odds(part: Ints) -> dict[str, pl.Series]:
        return {"weight": pl.Series(weight[slots.row[part]]), "probability": pl.Series(share[slots.row[part]])}

    places = place_rows(slots, placed, country, odds, settings, _version(slots, placed, settings))
    names = country(lost).to_list()
    return places, refusal_rows(slots, lost, names, [{"country": code, "quota": quotas[code]} for code in names])


def _in_cities(settings: PlanSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    cities = choose_cities(settings)
    slots = draw_in_cities(cities, settings)
    placed, lost = np.flatnonzero(slots.row >= 0), np.flatnonzero(slots.row < 0)

    def country(part: Ints) -> pl.Series:
        return cities["country"].gather(slots.row[part])

    def of_city(part: Ints) -> dict[str, pl.Series]:
        own = cities[slots.row[part]]
        return {
            "probability": own["probability"],
            "viewport_km": own["viewport_km"],
            "weight": own["people"],
            "city_id": own["city_id"].cast(pl.String),
            "city": own["name"],
            "city_lat": own["lat"],
            "city_lon": own["lon"],
        }

    places = place_rows(slots, placed, country, of_city, settings, _version(slots, placed, settings))
    evidence = [
        {"country": country, "city": name, "city_id": str(city_id), "quota": quota}
        for country, name, city_id, quota in cities[slots.group[lost]]
        .select("country", "name", "city_id", "quota")
        .iter_rows()
    ]
    names = [f"{city['country']}-{city['city_id']}" for city in evidence]
    return places, refusal_rows(slots, lost, names, evidence)


def _version(slots: Slots, placed: Ints, settings: PlanSettings) -> str:
    cell = cell_number(slots.lat[placed], slots.lon[placed])
    return digest("plan", _rules(slots, cell, settings), plan_identity(settings))


def _rules(slots: Slots, cell: Ints, settings: PlanSettings) -> int:
    """By which rules the places were drawn.

    3 where the floor goes by a cell's land; else 4 where cells of small countries were joined
    (`tasks.geo.cell_split`), 2 where places kept clear of land only, else 1. A plan that did not need a rule is the
    same plan as before there was one, and keeps its version.
    """
    if settings.mode == "world" and settings.floor_people:
        return 3
    parted = rejoined(settings.seed, settings.split, settings.buffer_km)
    if np.isin(cell, parted).any():
        return 4
    return 2 if slots.late.any() else 1


def compute(inputs: Inputs, settings: PlanSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Kept places and refused slots; together they are exactly M."""
    places, refusals = plan_places(settings)
    if not places.height:
        why = refusals["reason"].value_counts(sort=True)["reason"][0].removeprefix("no_place_")
        raise InputError(
            f"plan.buffer_km {settings.buffer_km:g}, plan.spacing_km {settings.spacing_km:g}: "
            f"none of the {refusals.height} places finds room ({why}); lower one of the two, or plan for more countries"
        )
    return places, refusals


STAGE = ColumnStage(
    name="plan",
    reads=(),
    writes=("places",),
    compute=compute,
    identity=plan_identity,
)
