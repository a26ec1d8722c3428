"""What gives a picture away that is not where or what its row says: far from its place, coordinates swapped."""

import numpy as np
import polars as pl

from tasks.geo.distance import distance_km, swapped_km
from tasks.geo.labels import country_codes_of


def of_places(images: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
    """One row for each picture that answers a place: `place_km` to it, `swapped_km` with lat and lon exchanged (null
    where that is no point), the country the place claims and `place_in`, the country it lies in."""
    own = places.select("place_id", place_lat="lat", place_lon="lon", place_country="country").unique("place_id")
    own = own.with_columns(place_in=country_codes_of(own["place_lat"], own["place_lon"]))
    pairs = images.select("image_id", "place_id", "lat", "lon").join(own, on="place_id")
    lat, lon, place_lat, place_lon = (pairs[name].to_numpy() for name in ("lat", "lon", "place_lat", "place_lon"))
    swapped = swapped_km(lat, lon, place_lat, place_lon)
    return pairs.select(
        "image_id",
        "place_lat",
        "place_lon",
        "place_country",
        "place_in",
        place_km=pl.Series(np.atleast_1d(distance_km(lat, lon, place_lat, place_lon)), dtype=pl.Float64),
        swapped_km=pl.Series(np.atleast_1d(swapped), dtype=pl.Float64).fill_nan(None),
    )
