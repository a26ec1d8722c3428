"""Some rows of a large table, the same every time: a share, a number by strata, or one picture a point of interest.

Rows are drawn by a hash of their id and `ingest.seed`: a share is part of every larger share, and another copy of the
table gives the same rows.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

import polars as pl

from schemas.settings.ingest import IngestSettings
from tasks.geo.boundaries import country_of
from tasks.geo.cell_split import cell_number
from tasks.ingest.layouts import held_out_split, listed
from tasks.ingest.refusal import TableRefused
from tasks.ingest.survey import Survey


class Strata(Protocol):
    """How many rows of each country are wanted, and how likely each of its cells is."""

    def quotas(self, available: Mapping[str, int], count: int) -> dict[str, int]: ...
    def cells(self) -> pl.DataFrame: ...


def drawn(survey: Survey, settings: IngestSettings, strata: Strata | None = None) -> Survey:
    """The survey with the rows that the settings draw alone; the same survey where they draw none."""
    by_layout = [share for layout, share in settings.shares.items() if layout == survey.layout.name]
    share = settings.share if settings.share is not None else next(iter(by_layout), 1.0)
    if share == 1.0 and settings.draw is None:
        return _held_out(survey, settings)
    remaining, words = survey, []
    if share < 1.0:
        chances = _chances(survey, settings.seed)
        remaining, words = _chosen(survey, chances.filter(pl.col("chance") < share)["row"]), [f"a share of {share:g}"]
    if settings.draw is not None and settings.draw_by == "cities":
        remaining = _chosen(remaining, _by_cities(remaining, settings))
        words.append(f"{settings.draw:,} by cities, one a point of interest")
    elif settings.draw is not None:
        remaining = _chosen(remaining, _by_strata(remaining, settings, strata))
        words.append(f"{settings.draw:,} by country and cell")
    if not remaining.rows:
        raise TableRefused(f"{survey.table.path}: none of its {survey.rows:,} rows is drawn; draw more of them")
    note = f"drawn: {remaining.rows:,} of {survey.rows:,} rows ({', then '.join(words)}); the others are not looked at"
    return _held_out(replace(remaining, notes=(*survey.notes, note)), settings)


def _chosen(survey: Survey, rows: pl.Series) -> Survey:
    return replace(survey, chosen=rows.sort(), rows=len(rows))


def _held_out(survey: Survey, settings: IngestSettings) -> Survey:
    """The survey with the rows that are held out, drawn apart from those that are taken."""
    if settings.held_out is None:
        return survey
    if settings.held_out >= survey.rows:
        raise TableRefused(
            f"{survey.table.path}: ingest.held_out={settings.held_out} leaves none of {survey.rows:,} rows to train on"
        )
    rows = _chances(survey, f"{settings.seed} held out").sort("chance", "row").head(settings.held_out)["row"]
    left = survey.rows - len(rows)
    name = {"benchmark": "the benchmark", "validation": "for validation"}[held_out_split(settings)]
    note = f"held out: {len(rows):,} rows are {name}, {left:,} are for training (ingest.seed {settings.seed})"
    return replace(survey, held_out=rows.sort(), notes=(*survey.notes, note))


def _chances(survey: Survey, seed: int | str, **columns: str) -> pl.DataFrame:
    """row, lat, lon, the named columns of the table, and a number in [0, 1) that follows from id and seed."""
    missing = [name for name in columns.values() if name not in survey.table.columns]
    if missing:
        raise TableRefused(
            f"{survey.table.path}: no column {missing[0]}, by which rows are to be drawn (ingest.city_column, "
            f"ingest.poi_column); its columns are {listed(survey.table.columns)}"
        )
    text = pl.coalesce("source_id", pl.col("row").cast(pl.String))
    chance = text.map_elements(partial(_chance, seed), pl.Float64)
    batches = survey.batches(further=columns)
    return pl.concat(rows.select("row", *columns, lat="lat_deg", lon="lon_deg", chance=chance) for rows in batches)


def _chance(seed: int | str, text: str) -> float:
    lot = hashlib.blake2b(f"{seed}|{text}".encode(), digest_size=8).digest()
    return int.from_bytes(lot, "big") / 2**64


def _by_strata(survey: Survey, settings: IngestSettings, strata: Strata | None) -> pl.Series:
    """GeoAgent B.1 for rows that there are: quotas of countries, and in each rows by the weights of their cells.

    The rows of a cell share its weight; without putting back, the largest log(u) / weight are the draw (Efraimidis and
    Spirakis).
    """
    if strata is None or settings.draw is None:
        raise ValueError("rows are drawn by strata: give them")
    rows = _chances(survey, settings.seed)
    rows = rows.filter(pl.col("lat").is_between(-90, 90), pl.col("lon").is_between(-180, 180))
    lat, lon = rows["lat"].to_numpy(), rows["lon"].to_numpy()
    rows = rows.with_columns(pl.Series("country", country_of(lat, lon)), pl.Series("cell", cell_number(lat, lon)))
    rows = rows.filter(pl.col("country") != "").join(strata.cells(), on=["country", "cell"], how="left")
    # A row at a coast may lie in a cell that the atlas gives to its neighbour: it weighs as the least of its country.
    rows = rows.with_columns(pl.col("weight").fill_null(pl.col("weight").min().over("country")).fill_null(1.0))
    rows = rows.with_columns(weight=pl.max_horizontal("weight", pl.lit(1e-9)) / pl.len().over("country", "cell"))
    available = dict(rows.group_by("country").len().iter_rows())
    quota = pl.col("country").replace_strict(strata.quotas(available, settings.draw), default=0, return_dtype=pl.Int64)
    key = pl.max_horizontal("chance", pl.lit(2.0**-64)).log() / pl.col("weight")
    return rows.filter(key.rank("ordinal", descending=True).over("country") <= quota)["row"]


def _by_cities(survey: Survey, settings: IngestSettings) -> pl.Series:
    """MAPBench: the cities with most points of interest, as many of each, one picture a point, all by chance."""
    columns = {"city": settings.city_column, "poi": settings.poi_column}
    rows = _chances(survey, settings.seed, **columns).drop_nulls(list(columns)).sort("chance")
    single = rows.unique("poi", keep="first", maintain_order=True)
    largest = single.group_by("city").len().sort(["len", "city"], descending=[True, False]).head(settings.cities)
    left, quotas = settings.draw or 0, {}
    for at, (name, count) in enumerate(largest.sort("len", "city").iter_rows()):  # the smallest first
        quotas[name] = min(count, math.ceil(left / (largest.height - at)))
        left -= quotas[name]
    quota = pl.col("city").replace_strict(quotas, default=0, return_dtype=pl.Int64)
    return single.filter(pl.int_range(pl.len()).over("city") < quota)["row"]
