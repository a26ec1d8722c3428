"""How many places each country gets (GeoAgent eq. 11)."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from schemas.errors import GeofixError, InputError
from schemas.settings.plan import PlanSettings, QuotaWeights
from tasks.geo.atlas import countries
from tasks.plan.population import raster_people
from tasks.plan.roads import road_lengths


def shares(
    roads: NDArray[np.float64], people: NDArray[np.float64], land: NDArray[np.float64], weights: QuotaWeights
) -> NDArray[np.float64]:
    """Each country's part of M: l1 R_i / sum R + l2 P_i / sum P + l3 A_i / sum A, which add up to 1.

    A factor that is zero everywhere (no roads) cannot be shared out; its weight then falls to the other factors.
    """
    total = np.zeros(len(roads))
    used = 0.0
    for factor, weight in ((roads, weights.roads), (people, weights.people), (land, weights.land)):
        if not (np.isfinite(factor).all() and (factor >= 0).all()):
            raise GeofixError("road length, population and land area must be numbers, not negative")
        if weight and factor.sum() > 0:
            total += weight * factor / factor.sum()
            used += weight
    if not used:
        raise InputError(
            "plan.weights: the planned countries have nothing of what is weighed; weigh something else too"
        )
    return total / used


def whole_quotas(parts: Sequence[float] | NDArray[np.float64], places: int) -> NDArray[np.int64]:
    """Whole numbers that sum to exactly `places`, by largest remainder; ties go to the earlier entry."""
    exact = np.asarray(parts, dtype=np.float64) * (places / np.sum(parts))
    quotas = np.floor(exact).astype(np.int64)
    missing = places - int(quotas.sum())
    # A share that rounding carried above its whole number is taken back where the remainder is smallest.
    by_remainder = np.argsort(-(exact - quotas), kind="stable")
    if missing >= 0:
        quotas[by_remainder[:missing]] += 1
    else:
        some = by_remainder[quotas[by_remainder] > 0]
        quotas[some[missing:]] -= 1
    return quotas


def country_table(settings: PlanSettings) -> pl.DataFrame:
    """The packaged table of countries, with roads and people of the files that the settings name."""
    table = countries()
    replaced: dict[str, Mapping[str, float]] = {}
    if settings.roads:
        replaced["road_km"] = road_lengths(settings.roads)
    if settings.population_raster:
        replaced["population"] = raster_people(settings.population_raster)
    for column, values in replaced.items():
        overrides = pl.Series([values.get(code) for code in table["iso2"]], dtype=pl.Float64)
        table = table.with_columns(pl.coalesce(overrides, column).alias(column))
    return table


def chosen_countries(table: pl.DataFrame, settings: PlanSettings) -> pl.DataFrame:
    """The rows of the country table that the settings plan for."""
    known = set(table["iso2"])
    for field, codes in (("countries", settings.countries or ()), ("exclude", settings.exclude)):
        unknown = sorted(set(codes) - known)
        if unknown:
            raise InputError(
                f"plan.{field}: given {', '.join(unknown)}; no country has this ISO 3166 alpha-2 code, such as FR "
                "or BR (Kosovo, which has none, is XK)"
            )
    wanted = set(settings.countries or known) - set(settings.exclude)
    return table.filter(pl.col("iso2").is_in(sorted(wanted))).sort("iso2")


def _refuse_what_none_has(chosen: pl.DataFrame, weights: QuotaWeights) -> None:
    """Refuse weights by which no country would get anything."""
    columns = {"roads": "road_km", "people": "population", "land": "land_km2"}
    counted = [name for name, weight in weights.model_dump().items() if weight]
    if any(chosen[columns[name]].sum() for name in counted):
        return
    codes = chosen["iso2"].to_list()
    named = ", ".join(codes[:5]) + (", …" if len(codes) > 5 else "")
    other = [name for name in columns if name not in counted and chosen[columns[name]].sum()]
    way = f"give {' or '.join(other)} a weight" if other else "name other countries in plan.countries"
    raise InputError(f"plan.weights: only {' and '.join(counted)} count, of which {named} have none; {way}")


def country_quotas(table: pl.DataFrame, settings: PlanSettings) -> Mapping[str, int]:
    """Places per ISO code, summing to exactly M; a country too small for one place is there with 0."""
    chosen = chosen_countries(table, settings)
    _refuse_what_none_has(chosen, settings.weights)
    roads, people, land = (chosen[name].to_numpy().astype(np.float64) for name in ("road_km", "population", "land_km2"))
    quotas = whole_quotas(shares(roads, people, land, settings.weights), settings.places)
    return dict(zip(chosen["iso2"].to_list(), quotas.tolist(), strict=True))
