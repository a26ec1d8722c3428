"""Random small worlds: every place in its country, spacing and buffer kept, none refused without cause.

Every fifth is of cities: its places lie in their viewports, and no city is in two splits. The variable
GEOFIX_SMALL_WORLDS says how many are drawn. What is checked is found by other means than the plan's: countries by
shapely on the same polygons, splits cell by cell from the tables, and for a refused place whether its country had room
left.
"""

import os
from functools import cache

import numpy as np
import polars as pl
import shapely

from bench.labels_million import prepared_countries
from schemas.errors import InputError
from schemas.settings.plan import PlanSettings, SplitShares
from tasks.geo.atlas import countries
from tasks.geo.cell_split import split_of_cells
from tasks.geo.distance import EARTH_RADIUS_KM, distance_km
from tasks.plan.stage import plan_places

WORLDS = int(os.environ.get("GEOFIX_SMALL_WORLDS", "60"))
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
        if not shapely.intersects_xy(prepared_countries()[code], lon[here], lat[here]).all():
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
def _land() -> list[shapely.Geometry]:
    return list(prepared_countries().values())


@cache
def _tree() -> shapely.STRtree:
    return shapely.STRtree(_land())


def has_room(code: str, settings: PlanSettings, places: pl.DataFrame) -> bool:
    """Whether random points of the country keep their distance to all places and to the land of other splits."""
    lat, lon = _points_in(prepared_countries()[code], np.random.default_rng(settings.seed))
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
    west, south, east, north = shapely.bounds(prepared_countries()[code])
    return float(distance_km(south, west, north, east))


def _foreign_land_near(code: str, buffer_km: float) -> bool:
    """Whether other countries' land is so near that their cells may take land of this one."""
    west, south, east, north = shapely.bounds(prepared_countries()[code])
    high = np.degrees((buffer_km + SQUARE_KM) / EARTH_RADIUS_KM)
    wide = high / np.cos(np.radians(min(max(abs(south), abs(north)) + high, 89)))
    around = shapely.box(west - wide, south - high, east + wide, north + high)
    return any(
        _land()[n] is not prepared_countries()[code] and shapely.intersects(_land()[n], around)
        for n in _tree().query(around)
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


def test_random_small_worlds_hold_every_rule() -> None:
    random = np.random.default_rng(2026)
    codes = [code for code in countries()["iso2"].to_list() if code != "AQ"]
    for number in range(1, WORLDS + 1):
        settings = (random_cities if number % CITIES_EVERY == 0 else random_world)(random, codes)
        try:
            places, refused = plan_places(settings)
        except InputError as error:
            assert "plan.cities.count" in str(error)  # fewer cities than wanted: refused as a whole
        else:
            assert breaches(settings, places, refused) == [], (number, settings)


def test_worlds_are_small_and_many_kinds() -> None:
    random = np.random.default_rng(1)
    codes = countries()["iso2"].to_list()
    worlds = [random_world(random, codes) for _ in range(50)]
    assert {world.within_cell for world in worlds} == {"gazetteer", "uniform"}
    assert {world.buffer_km for world in worlds} == {0, 2, 10, 30} and max(world.places for world in worlds) < 60


def test_what_is_wrong_with_a_plan_is_found() -> None:
    settings = PlanSettings(places=20, countries=("FR",), split={"train": 0.5, "validation": 0.5, "benchmark": 0})
    places, refused = plan_places(settings)
    assert breaches(settings, places, refused) == []
    nowhere = places.with_columns(lat=pl.when(pl.int_range(pl.len()) == 3).then(0.0).otherwise("lat"))
    assert breaches(settings, nowhere, refused) == ["a place outside FR"]
    assert breaches(settings, places.head(19), refused) == ["19 placed + 0 refused is not 20"]
    twice = pl.concat([places.head(19), places.head(1)])
    assert breaches(settings, twice, refused) == ["two places 0.0 km apart"]
    mixed = places.with_columns(split=pl.Series(["train", "validation"] * 10))
    assert breaches(settings.model_copy(update={"buffer_km": 500.0}), mixed, refused)[0].startswith("two splits ")
    lost = pl.DataFrame({"id": ["FR-0000019"], "reason": ["no_place_too_close"], "evidence_json": ["{}"]})
    assert breaches(settings, places.head(19), lost) == ["FR was refused a place but has room"]


def test_what_is_wrong_with_a_plan_of_cities_is_found() -> None:
    random = np.random.default_rng(3)
    drawn = random_cities(random, ["FR", "DE", "IN", "CN", "JP"] * 4)
    assert drawn.mode == "cities" and drawn.places >= drawn.cities.count
    settings = PlanSettings(mode="cities", places=12, countries=("FR", "DE"), cities={"count": 3})
    places, refused = plan_places(settings)
    assert breaches(settings, places, refused) == []
    other = pl.Series(["train", "benchmark"] * 6)
    assert "a city in two splits" in breaches(settings, places.with_columns(split=other), refused)
    moved = places.with_columns(city_lat=pl.col("city_lat") + 0.5)
    assert breaches(settings, moved, refused) == ["a place outside its city's viewport"]


def test_an_island_hemmed_in_by_its_own_cells_is_found() -> None:
    """Aruba as it was: all places in a strip of the larger cell, and most of the island empty."""
    settings = PlanSettings(places=16, countries=("AW",), seed=12)
    places, refused = plan_places(settings)
    assert (places.height, refused.height) == (16, 0)
    strip = places.with_columns(lon=pl.Series(np.linspace(-69.906, -69.885, 16)), lat=pl.lit(12.45))
    assert has_room("AW", settings, strip.head(13))
    crowded = settings.model_copy(update={"places": 200, "spacing_km": 3.0})
    assert not has_room("AW", crowded, plan_places(crowded)[0])


def test_a_country_that_is_full_or_hemmed_in_has_no_room() -> None:
    crowded = PlanSettings(places=2, countries=("MC",), spacing_km=10)
    assert not has_room("MC", crowded, plan_places(crowded)[0])
    assert has_room("MC", crowded.model_copy(update={"spacing_km": 0.1}), plan_places(crowded)[0])
    # San Marino lies 1 km from the next cell, which is of another split for this seed.
    hemmed = PlanSettings(
        places=1, countries=("SM",), buffer_km=50, split={"train": 0.4, "validation": 0.3, "benchmark": 0.3}
    )
    places, refused = plan_places(hemmed)
    assert (places.height, refused.height) == (0, 1) and not has_room("SM", hemmed, places)
