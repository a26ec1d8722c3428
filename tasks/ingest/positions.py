"""Positions against the map: whether columns are exchanged, a row names another country or lies in mid-ocean.

A single row can be wrong for many reasons, so a table's columns are exchanged only where far more of its rows are right
with latitude and longitude exchanged than as they stand. A row is right in the country it names; one that names none,
on land.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tasks.geo.boundaries import country_of
from tasks.geo.labels import country_codes_of
from tasks.geo.names import country_code

LEAST_ROWS = 4  # with fewer, chance is as good an explanation
LEAST_SHARE = 0.1  # of the rows must speak for an exchange,
TIMES = 4  # how many times more rows must speak for it than against it

OCEAN_KM = 100.0  # farther from any land is mid-ocean
BORDER_DEG = 0.25  # a country that begins this near may be meant: outlines are coarse, and so are positions
# Territories that go by the name of their country as often as by their own.
_TERRITORIES = {
    "AU": "CC CX HM NF", "CN": "HK MO TW", "DK": "FO GL", "FI": "AX", "FR": "BL GF GP MF MQ NC PF PM RE TF WF YT",
    "GB": "AI BM FK GG GI GS IM IO JE KY MS PN SH TC VG", "IL": "PS", "MA": "EH", "NL": "AW BQ CW SX", "NO": "BV SJ",
    "NZ": "CK NU TK", "RS": "XK", "US": "AS GU MP PR UM VI",
}  # fmt: skip
_HOME = {territory: code for code, territories in _TERRITORIES.items() for territory in territories.split()}

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass
class Positions:
    """All rows with two finite numbers: how many are right only exchanged, and how many only as they stand."""

    rows: int = 0
    exchanged: int = 0
    as_given: int = 0
    first: tuple[int, float, float] | None = None  # row, lat, lon of the first that is right only exchanged

    def observe(self, rows: NDArray[np.int64], lat: Floats, lon: Floats, named: pl.Series) -> None:
        """Count a batch of the table, with the country that each row names or null."""
        wanted = codes_of(named)
        as_is, exchanged = _is_right(lat, lon, wanted), _is_right(lon, lat, wanted)
        only = np.flatnonzero(exchanged & ~as_is)
        self.rows += len(rows)
        self.exchanged += len(only)
        self.as_given += int((as_is & ~exchanged).sum())
        if self.first is None and len(only):
            self.first = int(rows[only[0]]), float(lat[only[0]]), float(lon[only[0]])

    def why_exchanged(self) -> str | None:
        """What says that the columns are exchanged, in words; None when nothing does."""
        enough = max(LEAST_ROWS, LEAST_SHARE * self.rows, TIMES * self.as_given)
        if self.first is None or self.exchanged < enough:
            return None
        row, lat, lon = self.first
        return (
            f"{self.exchanged:,} of {self.rows:,} rows lie on land, or in the country they name, only when exchanged "
            f"(first: row {row}, lat {lat:g}, lon {lon:g})"
        )


def _is_right(lat: Floats, lon: Floats, wanted: pl.Series) -> Bools:
    """Whether a point lies in the country its row names; or where it names none, on land.

    Antarctica is land, but no photo of a temperate place whose longitude became a latitude was taken there.
    """
    on_earth = (np.abs(lat) <= 90) & (np.abs(lon) <= 180)
    here = country_codes_of(np.clip(lat, -90, 90), np.clip(lon, -180, 180))
    right = pl.select(pl.when(wanted.is_null()).then(here.fill_null("AQ") != "AQ").otherwise(here.eq_missing(wanted)))
    return np.asarray(on_earth & right.to_series().to_numpy())


def codes_of(named: pl.Series) -> pl.Series:
    """ISO codes of countries that are named in any usual way; null where none is known."""
    codes = {text: country_code(text) for text in named.drop_nulls().unique()}
    return named.replace_strict(codes, default=None, return_dtype=pl.String)


def in_other_country(lat: Floats, lon: Floats, named: pl.Series) -> Bools:
    """Whether a point lies in another country than the named one, and not near its border."""
    wanted, here = _home(codes_of(named)), _home(pl.Series(country_of(lat, lon)))
    other: Bools = np.asarray((wanted != "") & (here != "") & (here != wanted))
    at = np.flatnonzero(other)
    for north, east in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1)):
        near = country_of(np.clip(lat[at] + north * BORDER_DEG, -90, 90), lon[at] + east * BORDER_DEG)
        other[at] &= _home(pl.Series(near)) != wanted[at]
    return other


def _home(codes: pl.Series) -> NDArray[np.object_]:
    """The country that each is, or is a territory of; empty for none."""
    return codes.cast(pl.String).replace(_HOME).fill_null("").to_numpy()


def in_mid_ocean(lat: Floats, lon: Floats) -> pl.Series:
    """Whether no land is near."""
    return country_codes_of(lat, lon, OCEAN_KM).is_null()
