"""The first pass over a whole table, before anything is written: is it what it says, and can it be taken at all?

It goes through the file once in batches and keeps 24 bytes a row, so a table of millions needs some hundred megabytes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from schemas.settings.ingest import IngestSettings
from tasks.ingest.fields import FIELDS, STORED, read_degrees, row_id
from tasks.ingest.layouts import LAYOUTS, YFCC4K, Layout
from tasks.ingest.positions import Positions, country_numbers
from tasks.ingest.recognise import benchmark_hint, check_columns, recognise
from tasks.ingest.refusal import TableRefused
from tasks.ingest.table import BATCH, Table, open_table
from tasks.lake.ids import float_can_hold, long_ids, written_as_float
from tasks.services.errors import safe_text

ENOUGH_BAD = 3  # fewer bad rows are bad rows, not a bad table
ENOUGH_LONG_IDS = 20  # by chance, 20 long ids are all a float's values once in a million tables
_NONE_REPEATED = pl.DataFrame(schema={"id_hash": pl.UInt64, "first": pl.Int64, "differs": pl.Boolean})


@dataclass(frozen=True, eq=False)
class Survey:
    """A table that can be taken, and what was learnt of it."""

    table: Table
    layout: Layout
    names: Mapping[str, str]  # field -> the table's own name of its column
    rows: int
    notes: tuple[str, ...]
    folder: Path  # of the pictures
    stamp: tuple[int, ...]  # of the file when it was surveyed
    repeated: pl.DataFrame = field(default_factory=lambda: _NONE_REPEATED)
    """For each id that stands in several rows its hash, its `first` row, and whether its rows `differ`."""
    chosen: pl.Series | None = None  # numbers of the rows that were drawn; None: all
    held_out: pl.Series | None = None  # numbers of those that are the benchmark, the others being for training

    def batches(self, size: int = BATCH, further: Mapping[str, str] | None = None) -> Iterator[pl.DataFrame]:
        """Every row, with a column for each of FIELDS, and those of `table.REFUSAL` for a row that cannot be read.

        `further` names columns of the table beside those of the layout.
        """
        self.check_unchanged()
        missing = [pl.lit(None, dtype=pl.String).alias(name) for name in FIELDS if name not in self.names]
        for rows in self.table.batches({**self.names, **(further or {})}, size):
            mine = rows if self.chosen is None else rows.filter(pl.col("row").is_in(self.chosen.implode()))
            if mine.height or self.chosen is None:
                yield mine.with_columns(missing)
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """TableRefused if the file is not the one that was surveyed: what was found out does not hold for it."""
        if stamp_of(self.table.path) != self.stamp:
            raise TableRefused(f"{self.table.path}: the file was changed while it was read; run the command again")


def stamp_of(path: Path) -> tuple[int, ...]:
    """What changes when a file does."""
    try:
        info = path.stat()
    except OSError as error:
        raise TableRefused(f"{path}: cannot be read: {error.strerror or error}") from error
    if path.is_dir():  # its rows are read once, and each picture is looked at again when it is opened
        return (info.st_ino,)
    return info.st_ino, info.st_size, info.st_mtime_ns


def survey_rows(path: Path, settings: IngestSettings) -> Survey:
    """What the table is; TableRefused, with the way out, when it cannot be taken as a whole."""
    stamp = stamp_of(path)  # before anything is read: it may change meanwhile
    table = open_table(path, settings.encoding, YFCC4K if settings.layout == "auto" else LAYOUTS[settings.layout])
    layout, guesses = recognise(table, settings)
    names = layout.pick(table.columns)
    if settings.swap_lat_lon:
        names["lat"], names["lon"] = names["lon"], names["lat"]
    check_columns(table, layout, names, settings)
    guesses += benchmark_hint(table, layout, settings, "split" in names)
    own = path.absolute() if table.format == "folder" else path.absolute().parent
    folder = Path(settings.images).expanduser().absolute() if settings.images else own
    return _Count(Survey(table, layout, names, 0, (*table.notes, *guesses), folder, stamp), settings).done()


@dataclass
class _Tally:
    """How many rows have a fault, and the first of them."""

    count: int = 0
    first: dict[str, Any] = field(default_factory=dict)

    def observe(self, rows: pl.DataFrame) -> None:
        self.count += rows.height
        self.first = self.first or next(rows.iter_rows(named=True), {})


class _Count:
    """What is counted over all rows, and what it says of the table."""

    def __init__(self, start: Survey, settings: IngestSettings) -> None:
        self._survey, self._settings = start, settings
        self._rows = self._long = 0
        self._unreadable, self._floats, self._rounded, self._not_numbers = _Tally(), _Tally(), _Tally(), _Tally()
        self._positions = Positions()
        self._ids: list[pl.DataFrame] = []  # row, and hashes of the id and the content

    def done(self) -> Survey:
        for rows in self._survey.batches():
            self._rows += rows.height
            self._unreadable.observe(rows.filter(pl.col("reason").is_not_null()))
            good = rows.filter(pl.col("reason").is_null())
            self._count_ids(good)
            self._count_positions(good)
        self._judge()
        return replace(self._survey, rows=self._rows, repeated=self._repeated())

    def _count_ids(self, rows: pl.DataFrame) -> None:
        has_ids, text = "id" in self._survey.names, pl.col("source_id")
        rows = rows.with_columns(row_id(has_ids, self._survey.folder)).filter(text.is_not_null())
        stored = [name for name in STORED if has_ids or name != "path"]
        self._ids.append(rows.select("row", id_hash=text.hash(), content=pl.struct(stored).hash()))
        if has_ids and self._settings.check_ids:
            self._floats.observe(rows.filter(written_as_float(text)))
            long = long_ids(rows["source_id"])
            self._long += len(long)
            rounded = [text for text in long if float_can_hold(int(text))]
            self._rounded.observe(rows.filter(text.is_in(rounded)))

    def _count_positions(self, rows: pl.DataFrame) -> None:
        numbers = rows.drop_nulls(["lat", "lon"]).with_columns(lat_deg=read_degrees("lat"), lon_deg=read_degrees("lon"))
        self._not_numbers.observe(numbers.filter(pl.any_horizontal(pl.col("lat_deg", "lon_deg").is_null())))
        good = numbers.drop_nulls(["lat_deg", "lon_deg"])
        row, lat, lon = (good[name].to_numpy() for name in ("row", "lat_deg", "lon_deg"))
        self._positions.observe(row, lat, lon, country_numbers(good["country"]))

    def _judge(self) -> None:
        table, word = self._survey.table, self._survey.table.word
        if self._rows == 0:
            raise TableRefused(f"{table.path}: the file holds no rows")
        if self._most(self._unreadable):
            first = self._unreadable.first
            raise TableRefused(
                f"{table.path}: {self._unreadable.count:,} of {self._rows:,} rows cannot be read, the first in {word} "
                f"{first['row']}: {first['problem']}; is it separated by {table.separator!r}?"
            )
        rounded = self._rounded if self._rounded.count == self._long >= ENOUGH_LONG_IDS else _Tally()
        damaged = self._floats if self._most(self._floats) else rounded
        if damaged.first:
            raise TableRefused(
                f"{table.path}: {damaged.count:,} of {self._rows:,} ids went through a float and lost digits "
                f"(first: {word} {damaged.first['row']}, {damaged.first['source_id']}); export it again with ids as "
                "text, or, if they are right, add --set ingest.check_ids=false"
            )
        if self._most(self._not_numbers) and table.format != "folder":  # whose photos are named one by one
            first = self._not_numbers.first
            name = "lat" if first["lat_deg"] is None else "lon"
            shown = f"{self._survey.names[name]} {safe_text(first[name], limit=40)!r}"
            raise TableRefused(
                f"{table.path}: {self._not_numbers.count:,} of {self._rows:,} positions are not numbers of degrees "
                f"(first: {word} {first['row']}, {shown}); write them with a decimal point, such as 48.8566"
            )
        self._judge_exchange(word)

    def _most(self, tally: _Tally) -> bool:
        return tally.count >= ENOUGH_BAD and tally.count * 2 > self._rows

    def _judge_exchange(self, word: str) -> None:
        why = None if self._settings.keep_lat_lon else self._positions.why_exchanged(word)
        if why is None:
            return
        lat, lon = (self._survey.names[name] for name in ("lat", "lon"))
        if self._settings.swap_lat_lon:
            fix = "leave --swap-lat-lon away"
        else:
            fix = "add --swap-lat-lon, or --keep-lat-lon if they are right"
        raise TableRefused(f"{self._survey.table.path}: columns {lat} and {lon} look exchanged: {why}; {fix}")

    def _repeated(self) -> pl.DataFrame:
        ids = pl.concat(self._ids).lazy().filter(pl.col("id_hash").is_duplicated())
        return (
            ids.group_by("id_hash").agg(first=pl.col("row").min(), differs=pl.col("content").n_unique() > 1).collect()
        )
