"""Positions against the map: whether columns are exchanged, a row names another country or lies in mid-ocean.

Three signs of exchanged columns, each counted over the whole table, because a single row can be wrong for many
reasons: points that lie in the country their row names only when exchanged; latitudes beyond 90 that would do as
longitudes; points that lie on land only when exchanged.
"""

from dataclasses import dataclass, field
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
class Sign:
    """Rows that are right only when exchanged, and rows that are right only as they stand."""

    exchanged: int = 0
    as_given: int = 0
    first: tuple[int, float, float] | None = None  # row, lat, lon that speak for an exchange

    def observe(self, rows: NDArray[np.int64], lat: Floats, lon: Floats, as_is: Bools, exchanged: Bools) -> None:
        only = np.flatnonzero(exchanged & ~as_is)
        self.exchanged += len(only)
        self.as_given += int((as_is & ~exchanged).sum())
        if self.first is None and len(only):
            at = only[0]
            self.first = int(rows[at]), float(lat[at]), float(lon[at])

    def says_exchanged(self, rows: int) -> bool:
        """Whether it is far more often right when exchanged."""
        return (
            self.exchanged >= LEAST_ROWS
            and self.exchanged >= LEAST_SHARE * rows
            and self.exchanged >= TIMES * self.as_given
        )


@dataclass
class Positions:
    """The signs over all rows with two finite numbers."""

    rows: int = 0
    range: Sign = field(default_factory=Sign)
    land: Sign = field(default_factory=Sign)
    country: Sign = field(default_factory=Sign)

    def observe(self, rows: NDArray[np.int64], lat: Floats, lon: Floats, country: NDArray[np.int64]) -> None:
        """Count a batch of the table. `country` is the number of the country each row names, 0 where it names none."""
        self.rows += len(rows)
        as_is, exchanged = _on_earth(lat, lon), _on_earth(lon, lat)
        self.range.observe(rows, lat, lon, as_is, exchanged)
        both = np.flatnonzero(as_is & exchanged & ~((lat == 0) & (lon == 0)))
        rows, lat, lon, country = rows[both], lat[both], lon[both], country[both]
        here, there = country_number(lat, lon), country_number(lon, lat)
        # Antarctica is land, but no photo of a temperate place whose longitude became a latitude was taken there. Small
        # islands may lie beside their outlines: a town there makes them land.
        inhabited = [(number != 0) & (number != country_codes().index("AQ")) for number in (here, there)]
        self.land.observe(rows, lat, lon, inhabited[0] | _near_town(lat, lon), inhabited[1] | _near_town(lon, lat))
        named = np.flatnonzero(country)
        in_it = [number[named] == country[named] for number in (here, there)]
        self.country.observe(rows[named], lat[named], lon[named], *in_it)

    def why_exchanged(self, word: str) -> str | None:
        """What says that the columns are exchanged, in words; None when nothing does."""
        country_denies = self.country.as_given > TIMES * self.country.exchanged
        for sign, claim in (
            (self.country, "rows lie in the country they name only when exchanged"),
            (self.range, "latitudes are beyond 90 and would do as longitudes"),
            (self.land, "points lie at sea, and on land when exchanged"),
        ):
            if sign.first and sign.says_exchanged(self.rows) and not (sign is self.land and country_denies):
                row, lat, lon = sign.first
                first = f"(first: {word} {row}, lat {lat:g}, lon {lon:g})"
                return f"{sign.exchanged:,} of {self.rows:,} {claim} {first}"
        return None


def _on_earth(lat: Floats, lon: Floats) -> Bools:
    return (np.abs(lat) <= 90) & (np.abs(lon) <= 180)


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
