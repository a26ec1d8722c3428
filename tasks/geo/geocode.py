"""An embedded geocoder on the packaged gazetteer and outlines: names to points, without a request.

A query is an address from fine to coarse, parted by commas: `Place, Region, Country`. The finest part that is a known
place of the region decides, else one of the country. Of places with one name the largest comes first.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import polars as pl

from tasks.geo.atlas import gazetteer, outlines, place_names_table, region_names_table
from tasks.geo.boundaries import index
from tasks.geo.names import cities_named, country_code, country_title, region_divisions, spellings

MOST_PEOPLE = 4e7  # of a place, for a weight between 0 and 1


@dataclass(frozen=True)
class Place:
    """A place, region or country that a query may mean."""

    lat: float
    lon: float
    name: str
    country: str  # ISO 3166 alpha-2
    region: str
    people: float
    is_town: bool = True

    @property
    def weight(self) -> float:
        """Between 0 and 1, higher for larger places."""
        return float(np.log1p(self.people) / np.log1p(MOST_PEOPLE))


def find_places(query: str, limit: int = 5) -> list[Place]:
    """The places that an address may mean, best first."""
    parts = [part.strip() for part in re.split(r"[,;\n]", query) if part.strip()][:8]
    if not parts:
        return []
    code = country_code(parts[-1])
    if code is None and len(parts) > 1 and (code := country_code(parts[0])):
        parts.reverse()  # written from coarse to fine
    parts = parts[:-1] if code else parts
    if not parts:
        country = _country(code) if code else None
        return [country] if country else []
    divisions = region_divisions(parts[-1], code) if code else set()
    towns = parts[:-1] if divisions and len(parts) > 1 else parts
    names = [*towns, *([", ".join(parts)] if len(parts) > 1 else [])]  # a name may hold a comma
    in_region = [place for name in names if divisions for place in _largest(name, code, divisions)]
    if in_region:
        return in_region[:limit]
    if divisions and len(parts) == 1:  # `Maine, USA`: the state, and no town of that name elsewhere
        return [_region(division) for division in sorted(divisions)][:limit]
    return next((places for name in names if (places := _largest(name, code, set()))), [])[:limit]


def _largest(name: str, code: str | None, divisions: set[str]) -> list[Place]:
    """The towns of a name, in these divisions or anywhere, the largest first."""
    places = [place for place, division in _towns(name, code) if not divisions or division in divisions]
    return sorted(places, key=lambda place: -place.people)


@lru_cache(maxsize=100_000)
def _towns(name: str, code: str | None) -> tuple[tuple[Place, str | None], ...]:
    """The towns of a country, or of the Earth, that bear a name, each with its division."""
    rows: set[int] = set()
    for country in (code,) if code else tuple(sorted(set(_table()["country"]))):
        by_name, by_id = _by_name(country)
        rows.update(row for form in spellings(name) for row in by_name.get(form, ()))
        if code:
            rows.update(by_id[city] for city in cities_named(name, country) if city in by_id)
    return tuple(_town(row) for row in sorted(rows))


def _town(row: int) -> tuple[Place, str | None]:
    country, lat, lon, people, name, region, division = _rows()[row]
    return Place(lat, lon, name, country, region or "", people), division


@cache
def _table() -> pl.DataFrame:
    """Every town of the gazetteer with the region that it lies in."""
    towns = pl.concat([gazetteer(), place_names_table()], how="horizontal")
    label = index().label(towns["lat"].to_numpy(), towns["lon"].to_numpy())
    regions = region_names_table().select("region", "division")
    inside = pl.Series(np.maximum(label - 1, 0))
    own = regions.select(pl.when(pl.Series(label > 0)).then(pl.all().gather(inside)).name.keep())
    return pl.concat([towns, own], how="horizontal")


@cache
def _rows() -> list[tuple[str, float, float, float, str, str | None, str | None]]:
    columns = ("country", "lat", "lon", "population", "name", "region", "division")
    return _table().select(columns).rows()


@lru_cache(maxsize=300)
def _by_name(country: str) -> tuple[dict[str, list[int]], dict[int, int]]:
    """Of a country's towns, the rows by folded name, and by GeoNames id."""
    rows_by_name: dict[str, list[int]] = defaultdict(list)
    own = _table().with_row_index("row").filter(pl.col("country") == country)
    for row, *names in own.select("row", "name", "local").iter_rows():
        for form in {form for name in names if name for form in spellings(name)}:
            rows_by_name[form].append(row)
    return dict(rows_by_name), dict(own.select("city_id", "row").iter_rows())


@lru_cache(maxsize=5_000)
def _region(division: str) -> Place:
    """A region at the middle of its largest part."""
    table = region_names_table().with_row_index("row").filter(pl.col("division") == division)
    shape = outlines()
    rings = np.flatnonzero(np.isin(shape.ring_region, table["row"].to_numpy()) & shape.ring_outer)
    sizes = shape.start[rings + 1] - shape.start[rings]
    ring = int(rings[np.argmax(sizes)])
    lat, lon = (line[shape.start[ring] : shape.start[ring + 1]] for line in (shape.lat, shape.lon))
    row = table.row(0, named=True)
    middle = float(lat.mean()), float(lon.mean())
    return Place(*middle, row["region"], row["country"], row["region"], 0.0, is_town=False)


@lru_cache(maxsize=300)
def _country(code: str) -> Place | None:
    """A country at its largest town."""
    own = _table().filter(pl.col("country") == code).sort("population", descending=True)
    if own.is_empty():
        return None
    largest = own.row(0, named=True)
    return Place(largest["lat"], largest["lon"], country_title(code), code, "", largest["population"], is_town=False)
