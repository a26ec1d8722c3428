"""The plan's strata for rows of a table: how many of each country, how likely each cell (GeoAgent eq. 11 and 12)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from schemas.settings.plan import PlanSettings
from tasks.geo.boundaries import country_codes
from tasks.plan.cells import cells
from tasks.plan.population import raster_cells
from tasks.plan.quota import chosen_countries, country_table, shares, whole_quotas


@dataclass(frozen=True)
class PlanStrata:
    """By the plan's countries, weights and population."""

    settings: PlanSettings

    def quotas(self, available: Mapping[str, int], count: int) -> dict[str, int]:
        """Rows of each country, `count` in all; what a country lacks is shared out among those that have more."""
        table = country_table(self.settings)
        chosen = chosen_countries(table, self.settings).filter(pl.col("iso2").is_in(list(available)))
        if chosen.is_empty():
            return {}
        roads, people, land = (
            chosen[name].to_numpy().astype(np.float64) for name in ("road_km", "population", "land_km2")
        )
        worth = shares(roads, people, land, self.settings.weights).tolist()
        parts = dict(zip(chosen["iso2"].to_list(), worth, strict=True))
        quota_by_code = dict.fromkeys(parts, 0)
        while True:
            room = [code for code in parts if quota_by_code[code] < available[code] and parts[code] > 0]
            missing = count - sum(quota_by_code.values())
            if not missing or not room:
                return quota_by_code
            for code, more in zip(room, whole_quotas([parts[code] for code in room], missing).tolist(), strict=True):
                quota_by_code[code] = min(available[code], quota_by_code[code] + more)

    def cells(self) -> pl.DataFrame:
        """country, cell and weight, log(1 + P_c), of every cell with land."""
        raster = self.settings.population_raster
        table = raster_cells(raster) if raster else cells()
        codes = pl.Series(country_codes()).gather(table.country)
        weight = table.weights(self.settings.floor_people)
        return pl.DataFrame({"country": codes, "cell": table.cell, "weight": weight})
