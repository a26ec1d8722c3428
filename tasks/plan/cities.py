"""The cities of a plan: chosen over countries, drawn by people, each with a viewport in which its places lie."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import polars as pl
from numpy.typing import NDArray

from schemas.errors import InputError
from schemas.settings.plan import PlanSettings
from tasks.geo.atlas import DATA, PER_DEGREE, countries
from tasks.geo.boundaries import country_codes, country_number, country_of, wrap
from tasks.geo.cell_split import keeps_clear, split_of_cells
from tasks.geo.distance import EARTH_RADIUS_KM, on_sphere
from tasks.geo.seeded_random import key, uniform
from tasks.plan.cells import cell_number
from tasks.plan.quota import chosen_countries, shares, whole_quotas
from tasks.plan.rounds import Floats, Ints, Slots, empty_slots, fill

# Built-up land holds a few thousand people a square kilometre on every continent, so a city's side follows from them.
PEOPLE_PER_KM2 = 4_000
SMALLEST_KM, LARGEST_KM = 5.0, 40.0
KM_PER_DEGREE = np.pi * EARTH_RADIUS_KM / 180


@cache
def all_cities() -> pl.DataFrame:
    """GeoNames places of 15,000 people and more that lie on their country's land as drawn."""
    with DATA.joinpath("cities.parquet").open("rb") as file:
        frame = pl.read_parquet(file)
    position = {name: pl.col(f"{name}_e5").cast(pl.Float64) / PER_DEGREE for name in ("lat", "lon")}
    frame = frame.select("city_id", "name", "country", **position, people=pl.col("population").cast(pl.Float64))
    ashore = country_of(frame["lat"].to_numpy(), frame["lon"].to_numpy()) == frame["country"].to_numpy().astype(str)
    return frame.filter(pl.Series(ashore))


def viewport_km(people: Floats) -> Floats:
    """The side of the square that a city of this population takes up."""
    return np.round(np.clip(np.sqrt(people / PEOPLE_PER_KM2), SMALLEST_KM, LARGEST_KM), 1)


def choose_cities(settings: PlanSettings) -> pl.DataFrame:
    """The plan's cities, with `viewport_km`, `probability` in their country and `quota`, sorted by country and id.

    Countries share the cities by eq. 11, evened out; inside a country a city's chance goes with its people. No two
    viewports overlap, and a city whose centre is near cells of another split is left out: it would have no room.
    """
    wanted = settings.cities
    planned = chosen_countries(countries(), settings)
    cities = _eligible(settings, planned["iso2"].to_list())
    codes = sorted(set(cities["country"].to_list()))
    table = planned.filter(pl.col("iso2").is_in(codes))
    roads, people, land = (table[name].to_numpy().astype(np.float64) for name in ("road_km", "population", "land_km2"))
    parts = shares(roads, people, land, settings.weights) ** (1 - wanted.evenness) if codes else np.zeros(0)
    chosen = _deal(cities, dict(zip(codes, parts.tolist(), strict=True)), wanted.count)
    if len(chosen) < wanted.count:
        raise InputError(
            f"plan.cities.count: given {wanted.count}, but only {len(chosen)} cities of {wanted.min_people:,} people "
            "and more lie apart in the planned countries; lower it or plan.cities.min_people"
        )
    ordered = cities[chosen].sort("people", "city_id", descending=[True, False])
    quota = whole_quotas(np.ones(ordered.height), settings.places)  # the same for all; what is over goes to the largest
    return ordered.with_columns(quota=pl.Series(quota)).sort("country", "city_id")


def _eligible(settings: PlanSettings, codes: list[str]) -> pl.DataFrame:
    """Cities large enough, none of them a quarter of a larger one, in the order in which their country takes them."""
    wanted = settings.cities
    cities = all_cities().filter(pl.col("country").is_in(codes) & (pl.col("people") >= wanted.min_people))
    side = (
        np.full(cities.height, wanted.viewport_km) if wanted.viewport_km else viewport_km(cities["people"].to_numpy())
    )
    cities = cities.with_columns(viewport_km=pl.Series(side, dtype=pl.Float64))
    cities = cities.sort("people", "city_id", descending=[True, False])
    near = _Viewports(cities)
    quarter = np.zeros(cities.height, dtype=bool)
    for larger in range(cities.height):
        if not quarter[larger]:
            quarter[[other for other in near.holding(larger) if other > larger]] = True
    cities = cities.filter(pl.Series(~quarter))
    splits = split_of_cells(settings.seed, settings.split, settings.buffer_km)
    clear = keeps_clear(cities["lat"].to_numpy(), cities["lon"].to_numpy(), splits, settings.buffer_km)
    cities = cities.filter(pl.Series(clear))
    # An exponential race (Efraimidis and Spirakis): the order of a city depends on its own draw and people only.
    start = np.array([key("city", settings.seed, code) for code in cities["country"].to_list()], dtype=np.uint64)
    with np.errstate(divide="ignore"):
        race = -np.log(uniform(start, cities["city_id"].to_numpy().astype(np.int64))) / cities["people"].to_numpy()
    share = pl.col("people") / pl.col("people").sum().over("country")
    return cities.with_columns(race=pl.Series(race), probability=share).sort("country", "race", "city_id")


def _deal(cities: pl.DataFrame, parts: Mapping[str, float], count: int) -> list[int]:
    """Rows of the chosen cities. What a country cannot fill is dealt out again among those that can."""
    near = _Viewports(cities)
    queues: dict[str, list[int]] = {code: [] for code in parts}
    for row, code in enumerate(cities["country"].to_list()):
        queues[code].append(row)
    chosen: list[int] = []
    barred: set[int] = set()
    while len(chosen) < count and queues:
        quotas = whole_quotas([parts[code] for code in queues], count - len(chosen))
        for code, quota in zip(list(queues), quotas.tolist(), strict=True):
            for _ in range(quota):
                free = next((row for row in queues[code] if row not in barred), None)
                if free is None:
                    del queues[code]
                    break
                chosen.append(free)
                barred.update(near.overlapping(free), (free,))
    return chosen


class _Viewports:
    """Which cities lie in whose viewport."""

    def __init__(self, cities: pl.DataFrame) -> None:
        from scipy.spatial import cKDTree

        self._lat, self._lon = cities["lat"].to_numpy(), cities["lon"].to_numpy()
        self._half = cities["viewport_km"].to_numpy() / 2
        self._points = on_sphere(self._lat, self._lon)
        self._tree = cKDTree(self._points) if len(self._lat) else None
        self._widest = float(self._half.max(initial=0.0))

    def holding(self, row: int) -> Iterator[int]:
        """Cities whose centre lies in the viewport of this one."""
        return self._within(row, self._half[row], 0.0)

    def overlapping(self, row: int) -> Iterator[int]:
        """Cities whose viewport overlaps this one's."""
        return self._within(row, self._half[row] + self._widest, 1.0)

    def _within(self, row: int, reach_km: float, with_theirs: float) -> Iterator[int]:
        assert self._tree is not None
        # The corner of a square is farther than its side, and a straight line shorter than the arc: a hair more.
        for other in self._tree.query_ball_point(self._points[row], 1.5 * reach_km / EARTH_RADIUS_KM):
            limit = self._half[row] + with_theirs * self._half[other]
            up = abs(self._lat[other] - self._lat[row]) * KM_PER_DEGREE
            turn = abs((self._lon[other] - self._lon[row] + 180) % 360 - 180)
            widest = np.cos(np.radians(min(abs(self._lat[other]), abs(self._lat[row]))))
            if other != row and up < limit and turn * widest * KM_PER_DEGREE < limit:
                yield other


@dataclass(frozen=True)
class _Views:
    """The viewports of the chosen cities, as a source of candidates; a group is a city's row."""

    lat: Floats
    lon: Floats
    side_km: Floats
    country: Ints
    keys: NDArray[np.uint64]

    def candidates(self, group: Ints, slot: Ints, attempt: Ints) -> tuple[Ints, Floats, Floats]:
        """Anywhere in the viewport alike."""
        keys, side = self.keys[group], self.side_km[group] / KM_PER_DEGREE
        lat = self.lat[group] + (uniform(keys, slot, attempt, 1) - 0.5) * side
        lon = self.lon[group] + (uniform(keys, slot, attempt, 2) - 0.5) * side / np.cos(np.radians(self.lat[group]))
        return group, lat, wrap(lon)

    def is_inside(self, row: Ints, lat: Floats, lon: Floats) -> NDArray[np.bool_]:
        """On land of the city's country."""
        return np.asarray(country_number(lat, lon) == self.country[row])

    def home_cell(self, row: Ints) -> Ints:
        """A city belongs to one split: that of its centre."""
        return cell_number(self.lat[row], self.lon[row])


def draw_in_cities(cities: pl.DataFrame, settings: PlanSettings) -> Slots:
    """A place for every slot of every city that can have one."""
    number = {code: i for i, code in enumerate(country_codes())}
    views = _Views(
        lat=cities["lat"].to_numpy(),
        lon=cities["lon"].to_numpy(),
        side_km=cities["viewport_km"].to_numpy(),
        country=np.array([number[code] for code in cities["country"].to_list()]),
        keys=np.array([key("view", settings.seed, city) for city in cities["city_id"].to_list()], dtype=np.uint64),
    )
    slots = empty_slots(np.arange(cities.height), cities["quota"].to_numpy().astype(np.int64))
    splits = split_of_cells(settings.seed, settings.split, settings.buffer_km)
    return fill(slots, views, splits, settings.spacing_km, settings.buffer_km)
