"""How far a point is from the places of a name: whether an answer's town and its coordinates can both be right."""

from collections import defaultdict
from functools import lru_cache

import polars as pl

from tasks.geo.atlas import gazetteer, place_names_table
from tasks.geo.distance import distance_km
from tasks.geo.names import city_names, spellings


def nearest_named_km(name: str, country: str, lat: float, lon: float) -> float | None:
    """Distance in km to the nearest place of this name in a country (ISO code); None where none is known."""
    index = _by_name(country)
    places = [place for form in city_names(name, country) for place in index.get(form, ())]
    return min((distance_km(lat, lon, *place) for place in places), default=None)


@lru_cache(maxsize=64)
def _by_name(country: str) -> dict[str, list[tuple[float, float]]]:
    """Folded name -> positions of the places of a country that bear it."""
    table = pl.concat([gazetteer().select("country", "lat", "lon"), place_names_table()], how="horizontal")
    points_by_name: dict[str, list[tuple[float, float]]] = defaultdict(list)
    own = table.filter(pl.col("country") == country)
    for lat, lon, *names in own.select("lat", "lon", "name", "local").iter_rows():
        for form in {form for name in names if name for form in spellings(name)}:
            points_by_name[form].append((lat, lon))
    return points_by_name
