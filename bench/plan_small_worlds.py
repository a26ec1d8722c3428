"""Ten thousand random small worlds: every place in its country, spacing and buffer kept, none refused without cause.

Every fifth is of cities: its places lie in their viewports, and no city is in two splits.

`python -m bench.plan_small_worlds [WORLDS]` prints a line every thousand worlds and stops at the first breach. What is
checked is found by other means than the plan's: countries by shapely on the same polygons, splits cell by cell from
the tables, and for a refused place whether its country had room left.
"""

import sys
import time
from collections import Counter
from functools import cache

import numpy as np
import polars as pl
import shapely

from bench.plan_country_lookup import country_shapes
from schemas.errors import InputError
from schemas.settings.plan import PlanSettings, SplitShares
from tasks.geo.atlas import countries
from tasks.geo.boundaries import country_codes
from tasks.geo.cell_split import split_of_cells
from tasks.geo.distance import EARTH_RADIUS_KM, distance_km
from tasks.plan.stage import plan_places

CITIES_EVERY = 5  # of the worlds one is of cities
PROBES = 200  # points of a country that are looked at for room,
ROOM = 10  # of which this many, 5 %, are more than a thousand tries may miss
SMALL = 5  # a country no wider than this many buffers keeps at least half of its land,
HALF = 0.6  # and points say so but for chance
SQUARE_KM = 15.8  # diagonal of a tenth of a degree, by which the plan knows land from sea


def random_world(random: np.random.Generator, codes: list[str]) -> PlanSettings:
    held_out = float(random.uniform(0, 0.4))
    return PlanSettings(
        places=int(random.integers(1, 60)),
        seed=int(random.integers(0, 2**60)),
        countries=tuple(random.choice(codes, int(random.integers(1, 6)), replace=False).tolist()),
        within_cell="gazetteer" if random.random() < 0.5 else "uniform",
        spacing_km=float(random.choice([0, 0.5, 1, 3, 10])),
        buffer_km=float(random.choice([0, 2, 10, 30])),
        jitter_km=float(random.choice([0, 1, 5])),
        split=SplitShares(train=1 - 2 * held_out, validation=held_out, benchmark=held_out),
    )


def random_cities(random: np.random.Generator, codes: list[str]) -> PlanSettings:
    held_out, count = float(random.uniform(0, 0.4)), int(random.integers(1, 12))
    return PlanSettings(
        mode="cities",
        places=int(random.integers(count, 60)),
        seed=int(random.integers(0, 2**60)),
        countries=tuple(random.choice(codes, int(random.integers(3, 20)), replace=False).tolist()),
        spacing_km=float(random.choice([0, 0.5, 1, 3])),
        buffer_km=float(random.choice([0, 2, 10, 30, 50])),
        split=SplitShares(train=1 - 2 * held_out, validation=held_out, benchmark=held_out),
        cities={
            "count": count,
            "min_people": int(random.choice([15_000, 100_000])),
            "viewport_km": [None, 5.0, 40.0, 100.0][int(random.integers(4))],
            "evenness": float(random.choice([0, 0.2, 1])),
        },
    )


def breaches(settings: PlanSettings, places: pl.DataFrame, refused: pl.DataFrame) -> list[str]:
    """What is wrong with a plan of these settings."""
    found = []
    if places.height + refused.height != settings.places:
        found.append(f"{places.height} placed + {refused.height} refused is not {settings.places}")
    lat, lon = places["lat"].to_numpy(), places["lon"].to_numpy()
    for code in places["country"].unique().to_list():
        here = places["country"].to_numpy() == code
        if not shapely.intersects_xy(shapes()[code], lon[here], lat[here]).all():
            found.append(f"a place outside {code}")
    apart = distance_km(lat[:, None], lon[:, None], lat[None, :], lon[None, :]).reshape(len(lat), len(lat))
    np.fill_diagonal(apart, np.inf)
    split = places["split"].to_numpy()
    other = split[:, None] != split[None, :]
    if apart.min(initial=np.inf) < settings.spacing_km:
        found.append(f"two places {apart.min()} km apart")
    if apart[other].min(initial=np.inf) < settings.buffer_km:
        found.append(f"two splits {apart[other].min()} km apart")
    if settings.mode == "cities":
        return found + city_breaches(places)
    short = sorted(set(refused["id"].str.slice(0, 2)))
    return found + [f"{code} was refused a place but has room" for code in short if has_room(code, settings, places)]


def city_breaches(places: pl.DataFrame) -> list[str]:
    """What is wrong with the places of cities: outside the viewport, or a city in two splits."""
    found = []
    if (places.group_by("city_id").agg(pl.col("split").n_unique())["split"] > 1).any():
        found.append("a city in two splits")
    lat, lon, city_lat, city_lon, side_km = (
        places[name].to_numpy() for name in ("lat", "lon", "city_lat", "city_lon", "viewport_km")
    )
    away = np.abs((lon - city_lon + 180) % 360 - 180) * np.cos(np.radians(city_lat))
    farthest_km = np.radians(np.maximum(away, np.abs(lat - city_lat))) * EARTH_RADIUS_KM
    if (farthest_km > side_km / 2 + 0.002).any():
        found.append("a place outside its city's viewport")
    return found


@cache
def shapes() -> dict[str, shapely.Geometry]:
    """The country polygons, ready to be asked."""
    found = dict(zip(country_codes()[1:], country_shapes(), strict=True))
    shapely.prepare(list(found.values()))
    return found


@cache
def _land() -> list[shapely.Geometry]:
    return list(shapes().values())


@cache
def _tree() -> shapely.STRtree:
    return shapely.STRtree(_land())


def has_room(code: str, settings: PlanSettings, places: pl.DataFrame) -> bool:
    """Whether random points of the country keep their distance to all places and to the land of other splits."""
    lat, lon = _points_in(shapes()[code], np.random.default_rng(settings.seed))
    taken_lat, taken_lon = places["lat"].to_numpy(), places["lon"].to_numpy()
    apart = distance_km(lat[:, None], lon[:, None], taken_lat[None, :], taken_lon[None, :])
    free = apart.reshape(len(lat), len(taken_lat)).min(axis=1, initial=np.inf) >= settings.spacing_km
    if not settings.buffer_km:
        return int(free.sum()) >= ROOM
    # A small country is not to be hemmed in by its own cells: what they take of its land is less than half.
    if _width_km(code) <= SMALL * settings.buffer_km and not _foreign_land_near(code, settings.buffer_km):
        return bool(free.mean() > HALF)
    splits = split_of_cells(settings.seed, settings.split, settings.buffer_km).reshape(180, 360)
    found = 0
    for y, x in zip(lat[free].tolist(), lon[free].tolist(), strict=True):
        found += not _near_other_split(y, x, splits, settings.buffer_km + SQUARE_KM)
        if found == ROOM:
            return True
    return False


def _width_km(code: str) -> float:
    """The diagonal of the country's box."""
    west, south, east, north = shapely.bounds(shapes()[code])
    return float(distance_km(south, west, north, east))


def _foreign_land_near(code: str, buffer_km: float) -> bool:
    """Whether other countries' land is so near that their cells may take land of this one."""
    west, south, east, north = shapely.bounds(shapes()[code])
    high = np.degrees((buffer_km + SQUARE_KM) / EARTH_RADIUS_KM)
    wide = high / np.cos(np.radians(min(max(abs(south), abs(north)) + high, 89)))
    around = shapely.box(west - wide, south - high, east + wide, north + high)
    return any(
        _land()[n] is not shapes()[code] and shapely.intersects(_land()[n], around) for n in _tree().query(around)
    )


def _points_in(shape: shapely.Geometry, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Points of a country, evenly over the boxes of its parts."""
    boxes = shapely.bounds(shapely.get_parts(shape))
    size = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    lat, lon = np.zeros(0), np.zeros(0)
    while len(lat) < PROBES:
        west, south, east, north = boxes[random.choice(len(boxes), PROBES, p=size / size.sum())].T
        x, y = random.uniform(west, east), random.uniform(south, north)
        inside = shapely.intersects_xy(shape, x, y)
        lat, lon = np.append(lat, y[inside]), np.append(lon, x[inside])
    return lat[:PROBES], lon[:PROBES]


def _near_other_split(lat: float, lon: float, splits: np.ndarray, radius_km: float) -> bool:
    """Whether there is land in the part of the disc round the point that lies in cells of other splits."""
    high = np.degrees(radius_km / EARTH_RADIUS_KM)
    wide = high / max(np.cos(np.radians(min(abs(lat) + high, 89))), 1e-3)
    turn = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    disc = shapely.Polygon(np.column_stack([lon + wide * np.cos(turn), lat + high * np.sin(turn)]))
    own = splits[min(int(np.floor(lat)) + 90, 179), (int(np.floor(lon)) + 180) % 360]
    for row in range(max(int(np.floor(lat - high)), -90), min(int(np.floor(lat + high)), 89) + 1):
        for column in range(int(np.floor(lon - wide)), int(np.floor(lon + wide)) + 1):
            west = (column + 180) % 360 - 180
            if splits[row + 90, west + 180] == own:
                continue
            moved = shapely.transform(disc, lambda points, by=west - column: points + np.array([by, 0.0]))
            part = shapely.intersection(moved, shapely.box(west, row, west + 1, row + 1))
            if any(shapely.intersects(_land()[n], part) for n in _tree().query(part).tolist()):
                return True
    return False


def main(worlds: int = 10_000) -> int:
    random = np.random.default_rng(2026)
    codes = [code for code in countries()["iso2"].to_list() if code != "AQ"]
    begin = time.perf_counter()
    placed, without, reasons = 0, 0, Counter[str]()
    for done in range(1, worlds + 1):
        settings = (random_cities if done % CITIES_EVERY == 0 else random_world)(random, codes)
        try:
            places, refused = plan_places(settings)
        except InputError as error:
            if "plan.cities.count" not in str(error):
                raise
            without += 1  # fewer cities than asked for: refused as a whole
        else:
            found = breaches(settings, places, refused)
            if found:
                print(f"world {done}: {'; '.join(found)}\n{settings!r}")
                return 1
            placed += places.height
            reasons.update(refused["reason"].to_list())
        if done % 1000 == 0 or done == worlds:
            print(f"  {done:,} worlds hold, {time.perf_counter() - begin:.0f} s", flush=True)
    why = ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))
    print(f"  {worlds // CITIES_EVERY:,} worlds of cities, of which {without:,} have too few and were refused")
    print(f"  {placed:,} places; refused for want of room: {why or 'none'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*map(int, sys.argv[1:])))
