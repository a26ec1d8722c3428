"""The address of points without a network call: country and region by polygon, place by distance and size.

A point at sea within `SHORE_KM` of land belongs to the nearest coast: Natural Earth's coast is simplified, and quays
and islets are not drawn. A place is chosen among the towns of the point's own country: the one with the smallest
distance in units of its own radius, so that a city reaches further than a hamlet beside it.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from tasks.geo.atlas import country_names_table, gazetteer, outlines, place_names_table, region_names_table
from tasks.geo.boundaries import COLUMNS, ROWS, country_codes, country_of_label, index, runs, segments, square_of
from tasks.geo.distance import EARTH_RADIUS_KM, distance_km, on_sphere

if TYPE_CHECKING:
    from scipy.spatial import cKDTree

SHORE_KM = 20.0
PLACE_KM = 50.0  # a town further away is no address
SHORE_STEP_DEG = 0.02  # coasts are sampled at most that far apart to find the nearest one
# Towns looked at for one point: the nearest of any size, then the nearest of at least this many people.
NEAREST = ((0, 3), (10_000, 1), (100_000, 1), (1_000_000, 1))
# Radius of a town of n people: 0.035 n ** 0.43 km (1,000: 0.7 km; 100,000: 4.9 km; 1 M: 13 km; 10 M: 36 km).
RADIUS_KM, RADIUS_POWER = 0.035, 0.43
MASKED_FROM, MASKED_KM = 100_000, 200.0  # towns from this size on are only looked up in squares within their reach
PART = 100_000  # points that one thread takes at a time
CENTRE_KM = 0.5  # closer than that to a centre counts as being there

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def labels_of(lats: ArrayLike, lons: ArrayLike, place_km: float = PLACE_KM, shore_km: float = SHORE_KM) -> pl.DataFrame:
    """One row a point: `country_code`, `country`, `country_local`, `region`, `region_local`, `division`, `district`,
    `city`, `city_local`, `city_id`, `city_km`, `shore_km` (0 on land) and `address` (`Country; Region; Place`).

    A level that has no name is null; at sea all of them are.
    """
    lat, lon = np.atleast_1d(np.asarray(lats, float)), np.atleast_1d(np.asarray(lons, float))
    regions, countries, places = _region_columns(), _country_columns(), place_names_table()
    label, shore, city, away = _in_parts(lat, lon, place_km, shore_km)
    region = regions.select(pl.all().gather(pl.Series(label)))
    country = countries.select(pl.all().gather(pl.Series(country_of_label()[label])))
    town = places.select(pl.all().gather(pl.Series(np.where(city < 0, 0, city))))
    known = pl.Series(city >= 0)
    local = pl.coalesce("local", "name")
    town = town.select(
        city=pl.when(known).then("name"),
        city_local=pl.when(known).then(local),
        city_id=pl.when(known).then("city_id"),
        city_km=pl.when(known).then(pl.Series(away)),
    )
    dry = pl.Series(label > 0)
    frame = pl.concat([country, region, town], how="horizontal").with_columns(
        shore_km=pl.when(dry).then(pl.Series(shore))
    )
    return frame.with_columns(
        address=pl.when(pl.col("country").is_not_null()).then(
            pl.concat_str("country", "region", "city", separator="; ", ignore_nulls=True)
        )
    )


def _in_parts(lat: Floats, lon: Floats, place_km: float, shore_km: float) -> tuple[Ints, Floats, Ints, Floats]:
    """Region, distance from land, town and its distance of each point; large sets part by part, a thread for each core.

    Points are taken in the order of their squares: neighbours meet the same branches of the trees while these are at
    hand.
    """
    index(), _towns(), _reach(place_km), country_of_label(), _coast_cells(_rings(shore_km))
    walk = np.argsort(square_of(lat, lon).astype(np.int32))
    label, city = np.zeros(len(lat), dtype=np.int64), np.full(len(lat), -1, dtype=np.int64)
    shore, away = np.zeros(len(lat)), np.full(len(lat), np.nan)

    def label_part(part: Ints) -> None:
        at_lat, at_lon = lat[part], lon[part]
        label_numbers, from_land = index().label(at_lat, at_lon), np.zeros(len(part))
        wet = np.flatnonzero(label_numbers == 0)
        if wet.size and shore_km > 0:
            label_numbers[wet], from_land[wet] = _nearest_shore(at_lat[wet], at_lon[wet], shore_km)
        label[part], shore[part] = label_numbers, from_land
        city[part], away[part] = _places(at_lat, at_lon, country_of_label()[label_numbers], place_km)

    parts = [part for part in np.array_split(walk, max(len(lat) // PART, 1)) if len(part)]
    if len(parts) < 2:
        for part in parts:
            label_part(part)
    else:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(label_part, parts))
    return label, shore, city, away


def country_codes_of(lats: ArrayLike, lons: ArrayLike, shore_km: float = SHORE_KM) -> pl.Series:
    """The ISO 3166 code at each point, or of the nearest coast; null at sea."""
    lat, lon = np.atleast_1d(np.asarray(lats, float)), np.atleast_1d(np.asarray(lons, float))
    label = index().label(lat, lon)
    wet = np.flatnonzero(label == 0)
    if wet.size and shore_km > 0:
        label[wet], _ = _nearest_shore(lat[wet], lon[wet], shore_km)
    return _country_columns()["country_code"].gather(pl.Series(country_of_label()[label]))


@cache
def _country_columns() -> pl.DataFrame:
    """Names by country number; number 0, the sea, has none."""
    order = pl.DataFrame({"country": list(country_codes())})
    return order.join(country_names_table(), on="country", how="left", maintain_order="left").select(
        country_code=pl.when(pl.col("country") != "").then("country"),
        country=pl.col("name"),
        country_local=pl.coalesce("local", "name"),
    )


@cache
def _region_columns() -> pl.DataFrame:
    """Names by label of the border index."""
    names = region_names_table().select("region", "local", "division", "district")
    # A district's polygon may know no local name of the division around it; another polygon of the division may.
    local = names.drop_nulls("local").sort(pl.col("district").is_not_null()).unique("division", keep="first")
    names = names.drop("local").join(
        local.select("division", "local"), on="division", how="left", maintain_order="left"
    )
    frame = names.select("region", region_local="local", division="division", district="district")
    return pl.concat([pl.DataFrame({name: [None] for name in frame.columns}, schema=frame.schema), frame])


def _chord(km: float) -> float:
    return 2 * float(np.sin(min(km / EARTH_RADIUS_KM, np.pi) / 2))


@cache
def _shores() -> "tuple[cKDTree, Ints, Floats, Floats]":
    """Points along all coasts and borders, with the label of the region they belong to."""
    from scipy.spatial import cKDTree

    sides = segments(outlines())
    length = np.maximum(np.abs(sides.lat1 - sides.lat0), np.abs(sides.lon1 - sides.lon0))
    count = np.maximum(np.ceil(length / SHORE_STEP_DEG), 1).astype(np.int64)
    which = np.repeat(np.arange(len(count)), count)
    share = (np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)) / count[which]
    lat = sides.lat0[which] + share * (sides.lat1 - sides.lat0)[which]
    lon = sides.lon0[which] + share * (sides.lon1 - sides.lon0)[which]
    return cKDTree(on_sphere(lat, lon), balanced_tree=False, compact_nodes=False), sides.label[which], lat, lon


def _nearest_shore(lat: Floats, lon: Floats, most_km: float) -> tuple[Ints, Floats]:
    """The region of the nearest coast and its distance; label 0 where it is further than `most_km`."""
    label, km = np.zeros(len(lat), dtype=np.int64), np.full(len(lat), np.nan)
    tree, owner, shore_lat, shore_lon = _shores()
    near = np.flatnonzero(_coastal(lat, lon, most_km))
    if near.size:
        reach, nearest = tree.query(on_sphere(lat[near], lon[near]), distance_upper_bound=_chord(most_km))
        hit = np.isfinite(reach)
        at, source = near[hit], nearest[hit]
        label[at] = owner[source]
        km[at] = distance_km(lat[at], lon[at], shore_lat[source], shore_lon[source])
    return label, km


def _coastal(lat: Floats, lon: Floats, most_km: float) -> NDArray[np.bool_]:
    """Whether land may lie within `most_km`: a cheap test by squares of a degree that spares most points at sea."""
    return _coast_cells(_rings(most_km))[
        np.clip((lat + 90).astype(np.int64), 0, 179), (np.clip((lon + 180).astype(np.int64), 0, 359))
    ]


def _rings(most_km: float) -> int:
    return int(most_km // 111.0) + 1


@cache
def _coast_cells(rings: int) -> NDArray[np.bool_]:
    """Cells of a degree with land in them or in the `rings` around them; near the poles all cells of a parallel."""
    base, crossed = index().base, index().crossed
    land = ((base != 0) | (crossed >= 0)).reshape(180, 10, 360, 10).any(axis=(1, 3))
    grown = land.copy()
    for up in range(-rings, rings + 1):
        for along in range(-4 * rings, 4 * rings + 1):
            grown |= np.roll(np.roll(land, up, axis=0), along, axis=1)
    grown[np.abs(np.arange(180) - 89.5) > 75] = True
    return np.asarray(grown)


@cache
def _towns() -> "tuple[tuple[tuple[cKDTree, Ints, int], ...], Floats, Ints]":
    """A tree for each size of town, its rows, how many neighbours to ask for; radius and country of all towns."""
    from scipy.spatial import cKDTree

    frame = gazetteer()
    lat, lon, people = (frame[name].to_numpy() for name in ("lat", "lon", "population"))
    radius = RADIUS_KM * np.maximum(people, 500) ** RADIUS_POWER
    number = {code: i for i, code in enumerate(country_codes())}
    country = np.array([number.get(code, -1) for code in frame["country"]])
    trees = []
    for least, neighbours in NEAREST:
        rows = np.flatnonzero(people >= least)
        trees.append((cKDTree(on_sphere(lat[rows], lon[rows])), rows, neighbours))
    return tuple(trees), radius, country


@cache
def _reach(most_km: float) -> tuple[NDArray[np.bool_] | None, ...]:
    """For each size of town, the squares with one within `most_km`: elsewhere its tree need not be queried.

    None where nearly every place with people has such a town near, and the squares would spare nothing.
    """
    frame, (trees, _, _) = gazetteer(), _towns()
    towns_lat, towns_lon = frame["lat"].to_numpy(), frame["lon"].to_numpy()
    high = float(np.degrees(most_km / EARTH_RADIUS_KM))
    reaches: list[NDArray[np.bool_] | None] = []
    for (_, rows, _), (least, _) in zip(trees, NEAREST, strict=True):
        if least < MASKED_FROM or most_km > MASKED_KM:
            reaches.append(None)
            continue
        lat, lon = towns_lat[rows], towns_lon[rows]
        # The widest a circle around the town reaches, at its end nearest to a pole; 180 where it holds the pole.
        polar = np.cos(np.radians(np.minimum(np.abs(lat) + high, 90)))
        wide = np.degrees(np.arcsin(np.minimum(np.sin(np.radians(high)) / np.maximum(polar, 1e-12), 1)))
        wide = np.where(np.abs(lat) + high >= 90, 180, wide)
        first, last = ((np.clip(lat + side, -90, 90) + 90) * 10 for side in (-high, high))
        row = np.minimum(first, ROWS - 1).astype(np.int64)
        west = np.floor((lon - wide + 180) * 10).astype(np.int64)
        columns = np.minimum(np.floor((lon + wide + 180) * 10).astype(np.int64) - west + 1, COLUMNS)
        town, step = runs((np.minimum(last, ROWS - 1).astype(np.int64) - row + 1) * columns)
        column = (west[town] + step % columns[town]) % COLUMNS
        near = np.zeros(ROWS * COLUMNS, dtype=bool)
        near[(row[town] + step // columns[town]) * COLUMNS + column] = True
        reaches.append(near)
    return tuple(reaches)


def _places(lat: Floats, lon: Floats, country: Ints, most_km: float) -> tuple[Ints, Floats]:
    """The row of each point's town in the gazetteer, -1 for none, and how far it is."""
    city, away = np.full(len(lat), -1, dtype=np.int64), np.full(len(lat), np.nan)
    land = np.flatnonzero(country > 0)
    if not land.size:
        return city, away
    trees, radius, town_country = _towns()
    points, mine, square = on_sphere(lat[land], lon[land]), country[land], square_of(lat[land], lon[land])
    best, chosen, chord = np.full(land.size, np.inf), np.full(land.size, -1, dtype=np.int64), np.zeros(land.size)
    for (tree, rows, neighbours), near in zip(trees, _reach(most_km), strict=True):
        wanted = np.arange(land.size) if near is None else np.flatnonzero(near[square])
        if not wanted.size:
            continue
        reach, nearest = tree.query(points[wanted], k=[*range(1, neighbours + 1)], distance_upper_bound=_chord(most_km))
        for column in range(neighbours):
            hit = np.flatnonzero(nearest[:, column] < len(rows))
            at, town, straight = wanted[hit], rows[nearest[hit, column]], reach[hit, column]
            score = np.maximum(2 * EARTH_RADIUS_KM * np.arcsin(straight / 2), CENTRE_KM) / radius[town]
            better = np.flatnonzero((score < best[at]) & (town_country[town] == mine[at]))
            to = at[better]
            best[to], chosen[to], chord[to] = score[better], town[better], straight[better]
    named = np.flatnonzero(chosen >= 0)
    city[land[named]], away[land[named]] = chosen[named], 2 * EARTH_RADIUS_KM * np.arcsin(chord[named] / 2)
    return city, away
