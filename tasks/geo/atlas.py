"""The embedded atlas: country table, region outlines and gazetteer, read once a process."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

DATA = files("tasks") / "geo" / "data"  # beside the scripts that derive it
PER_DEGREE = 100_000  # stored coordinates are whole hundred-thousandths of a degree; divided, 90 stays exactly 90
CONTINENTS = {
    "AF": "Africa", "AN": "Antarctica", "AS": "Asia", "EU": "Europe", "NA": "North America", "OC": "Oceania",
    "SA": "South America",
}  # fmt: skip


@dataclass(frozen=True)
class Outlines:
    """Admin-1 regions as closed rings, outer ones counter-clockwise, holes clockwise.

    Ring r is `lat[start[r]:start[r + 1]]`, `lon[...]`, and belongs to region `ring_region[r]`.
    """

    country: tuple[str, ...]
    code: tuple[str, ...]
    name: tuple[str, ...]
    lat: NDArray[np.float64]
    lon: NDArray[np.float64]
    start: NDArray[np.int64]
    ring_region: NDArray[np.int64]
    ring_outer: NDArray[np.bool_]


@cache
def countries() -> pl.DataFrame:
    """One row per ISO 3166 country, sorted by code, with road km, people and land km2 filled (see data/README.md)."""
    # "NA" is Namibia and North America here, not a missing value.
    frame = pl.read_csv(DATA.joinpath("countries.csv").read_bytes(), infer_schema_length=None, null_values=[""])
    return frame.with_columns(pl.col("road_km", "population", "land_km2").cast(pl.Float64)).sort("iso2")


@cache
def outlines() -> Outlines:
    """Every region's rings, decoded."""
    table = pl.read_parquet(DATA.joinpath("regions.parquet").read_bytes())

    def flat(name: str) -> NDArray[Any]:
        return table[name].explode().to_numpy()

    sizes = flat("ring_sizes").astype(np.int64)
    rings_of_polygon = flat("polygon_rings").astype(np.int64)
    first_of_polygon = np.concatenate([[0], np.cumsum(rings_of_polygon)[:-1]])
    outer = np.zeros(len(sizes), dtype=bool)
    outer[first_of_polygon] = True
    return Outlines(
        country=tuple(table["country"]),
        code=tuple(table["code"]),
        name=tuple(table["name"]),
        lat=flat("lat_e5") / PER_DEGREE,
        lon=flat("lon_e5") / PER_DEGREE,
        start=np.concatenate([[0], np.cumsum(sizes)]),
        ring_region=np.repeat(np.arange(table.height), table["ring_sizes"].list.len().to_numpy()),
        ring_outer=outer,
    )


@cache
def gazetteer() -> pl.DataFrame:
    """GeoNames places of 500 people and more: country, lat, lon, population, sorted by country and cell."""
    frame = pl.read_parquet(DATA.joinpath("gazetteer.parquet").read_bytes())
    position = {name: pl.col(f"{name}_e5").cast(pl.Float64) / PER_DEGREE for name in ("lat", "lon")}
    return frame.select("country", **position, population=pl.col("population").cast(pl.Float64))


@cache
def country_names_table() -> pl.DataFrame:
    """One row a country: code, English name, name in its first official language, and its names in many languages."""
    return pl.read_parquet(DATA.joinpath("country_names.parquet").read_bytes())


@cache
def region_names_table() -> pl.DataFrame:
    """One row a polygon of the outlines, in their order: its admin-1 division, with names and abbreviations."""
    table = pl.read_parquet(DATA.joinpath("region_names.parquet").read_bytes())
    return table.with_columns(country=pl.Series(outlines().country))


@cache
def place_names_table() -> pl.DataFrame:
    """One row a place of the gazetteer, in its order: GeoNames id, name, and local name where it differs."""
    return pl.read_parquet(DATA.joinpath("place_names.parquet").read_bytes())
