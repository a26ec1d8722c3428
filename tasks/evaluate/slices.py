"""What predictions are grouped by: a column of their own, or the country or continent of their true position."""

from functools import cache

import polars as pl

from schemas.errors import InputError
from tasks.geo.atlas import CONTINENTS, countries
from tasks.geo.labels import labels_of


@cache
def continents() -> dict[str, str]:
    """ISO code -> continent, as GeoNames has it."""
    return dict(countries().select("iso2", pl.col("continent").replace(CONTINENTS)).iter_rows())


def slice_values(table: pl.DataFrame, by: str, source: str) -> pl.Series:
    """One value a row; `country` and `continent` are found from the true position where there is no such column."""
    if by in table.columns:
        return table[by].cast(pl.String)
    if by not in ("country", "continent"):
        raise InputError(
            f"--by {by}: {source} has no such column; it has {', '.join(table.columns)}, and country and continent "
            "follow from the true position"
        )
    labels = labels_of(table["true_lat"].to_numpy(), table["true_lon"].to_numpy())
    if by == "country":
        return labels["country"].alias(by)
    return labels["country_code"].replace_strict(continents(), default=None, return_dtype=pl.String).alias(by)
