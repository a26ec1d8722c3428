"""Positions against the map: whether columns are exchanged, a row names another country or lies in mid-ocean.

A single row can be wrong for many reasons, so a table's columns are exchanged only where far more of its rows are right
with latitude and longitude exchanged than as they stand. A row is right in the country it names; one that names none,
on land.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tasks.geo.atlas import countries, gazetteer
from tasks.geo.boundaries import country_codes, country_number, land_squares

LEAST_ROWS = 4  # with fewer, chance is as good an explanation
LEAST_SHARE = 0.1  # of the rows must speak for an exchange,
TIMES = 4  # how many times more rows must speak for it than against it

BORDER_DEG = 0.25  # a country that begins this near may be meant: outlines are coarse, and so are positions
# Territories that go by the name of their country as often as by their own.
_TERRITORIES = {
    "AU": "CC CX HM NF", "CN": "HK MO TW", "DK": "FO GL", "FI": "AX", "FR": "BL GF GP MF MQ NC PF PM RE TF WF YT",
    "GB": "AI BM FK GG GI GS IM IO JE KY MS PN SH TC VG", "IL": "PS", "MA": "EH", "NL": "AW BQ CW SX", "NO": "BV SJ",
    "NZ": "CK NU TK", "RS": "XK", "US": "AS GU MP PR UM VI",
}  # fmt: skip

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass
class Positions:
    """All rows with two finite numbers: how many are right only exchanged, and how many only as they stand."""

    rows: int = 0
    exchanged: int = 0
    as_given: int = 0
    first: tuple[int, float, float] | None = None  # row, lat, lon of the first that is right only exchanged

    def observe(self, rows: NDArray[np.int64], lat: Floats, lon: Floats, country: NDArray[np.int64]) -> None:
        """Count a batch of the table. `country` is the number of the country each row names, 0 where it names none."""
        as_is, exchanged = _is_right(lat, lon, country), _is_right(lon, lat, country)
        only = np.flatnonzero(exchanged & ~as_is)
        self.rows += len(rows)
        self.exchanged += len(only)
        self.as_given += int((as_is & ~exchanged).sum())
        if self.first is None and len(only):
            self.first = int(rows[only[0]]), float(lat[only[0]]), float(lon[only[0]])

    def why_exchanged(self, word: str) -> str | None:
        """What says that the columns are exchanged, in words; None when nothing does."""
        enough = max(LEAST_ROWS, LEAST_SHARE * self.rows, TIMES * self.as_given)
        if self.first is None or self.exchanged < enough:
            return None
        row, lat, lon = self.first
        return (
            f"{self.exchanged:,} of {self.rows:,} rows lie on land, or in the country they name, only when exchanged "
            f"(first: {word} {row}, lat {lat:g}, lon {lon:g})"
        )


def _is_right(lat: Floats, lon: Floats, named: NDArray[np.int64]) -> Bools:
    """Whether a point lies in the country its row names; or where it names none, on land or near a town.

    Antarctica is land, but no photo of a temperate place whose longitude became a latitude was taken there. Small
    islands may lie beside their outlines: a town there makes them land.
    """
    on_earth = (np.abs(lat) <= 90) & (np.abs(lon) <= 180)
    country = country_number(np.clip(lat, -90, 90), np.clip(lon, -180, 180))
    on_land = ((country != 0) & (country != country_codes().index("AQ"))) | _near_town(lat, lon)
    right: Bools = on_earth & np.where(named != 0, country == named, on_land)
    return right


@cache
def _squares_near_towns() -> Bools:
    """Tenths of a degree that hold a town of 500 people or touch one that does."""
    towns = gazetteer()
    there = np.zeros((1800, 3600), dtype=bool)
    there[_row(towns["lat"].to_numpy()), _column(towns["lon"].to_numpy())] = True
    return _widened(there)


def _widened(there: Bools) -> Bools:
    """What holds or touches it, around the Earth."""
    from scipy.ndimage import maximum_filter  # takes a while: not where nothing is ingested

    return np.asarray(maximum_filter(there, 3, mode=("nearest", "wrap")))


def _near_town(lat: Floats, lon: Floats) -> Bools:
    near: Bools = _squares_near_towns()[_row(lat), _column(lon)]
    return near


def _row(lat: Floats) -> NDArray[np.int64]:
    return np.clip((lat + 90) * 10, 0, 1799).astype(np.int64)


def _column(lon: Floats) -> NDArray[np.int64]:
    return np.clip((lon + 180) * 10, 0, 3599).astype(np.int64)


@cache
def _country_numbers() -> dict[str, int]:
    numbers = {code: number for number, code in enumerate(country_codes()) if code}
    names = {name.lower(): numbers[code] for code, name in countries().select("iso2", "name").iter_rows()
             if code in numbers and name}  # fmt: skip
    return {**names, **{code.lower(): number for code, number in numbers.items()}}


def country_numbers(named: pl.Series) -> NDArray[np.int64]:
    """The numbers of the countries that rows name by ISO code or English name; 0 where none is known."""
    numbers = named.str.to_lowercase().replace_strict(_country_numbers(), default=0, return_dtype=pl.Int64)
    return numbers.fill_null(0).to_numpy()


@cache
def _home_countries() -> NDArray[np.int64]:
    """For each country's number that of the country it is a territory of, else its own."""
    codes = country_codes()
    home = {territory: code for code, territories in _TERRITORIES.items() for territory in territories.split()}
    return np.array([codes.index(home.get(code, code)) for code in codes])


def in_other_country(lat: Floats, lon: Floats, named: NDArray[np.int64]) -> Bools:
    """Whether a point lies in another country than the named one, and not near its border. 0 names none."""
    home = _home_countries()
    country = country_number(lat, lon)
    other: Bools = np.asarray((named != 0) & (country != 0) & (home[country] != home[named]))
    at = np.flatnonzero(other)
    for north, east in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1)):
        near = country_number(np.clip(lat[at] + north * BORDER_DEG, -90, 90), lon[at] + east * BORDER_DEG)
        other[at] &= home[near] != home[named[at]]
    return other


@cache
def _cells_near_land() -> Bools:
    """One-degree cells that hold land or a town, and those around them."""
    squares = land_squares().reshape(1800, 3600) | _squares_near_towns()
    return _widened(np.any(squares.reshape(180, 10, 360, 10), axis=(1, 3)))


def in_mid_ocean(lat: Floats, lon: Floats) -> Bools:
    """Whether no land is in a point's one-degree cell or one beside it."""
    near: Bools = _cells_near_land()[_row(lat) // 10, _column(lon) // 10]
    return ~near
