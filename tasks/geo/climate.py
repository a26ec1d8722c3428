"""Climate belts by latitude: no map of biomes is packaged, and a place's belt says the most of its plants and light."""

import polars as pl

BELTS = ((23.5, "tropical"), (35.0, "subtropical"), (55.0, "temperate"), (66.5, "cold"), (90.0, "polar"))


def climate_belt(lat: pl.Series) -> pl.Series:
    """The belt of each latitude; null for null."""
    breaks, labels = [edge for edge, _ in BELTS[:-1]], [name for _, name in BELTS]
    return lat.abs().cut(breaks, labels=labels).cast(pl.String)
