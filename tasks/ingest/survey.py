"""The first pass over a whole table, before anything is written: is it what it says, and can it be taken at all?

It goes through the file once in batches and keeps 24 bytes a row, so a table of millions needs some hundred megabytes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from schemas.settings.ingest import IngestSettings
from tasks.ingest.layouts import LAYOUTS, YFCC4K, Layout
from tasks.ingest.positions import LEAST_ROWS, Positions, country_numbers
from tasks.ingest.recognise import benchmark_named, check_columns, passed_over, recognise
from tasks.ingest.refusal import TableRefused
from tasks.ingest.row_equality import FIELDS, read_degrees, row_content, row_id
from tasks.ingest.table import BATCH, Table, open_table
from tasks.lake.ids import MOST, LongIds, has_letters, may_be_hexadecimal, written_as_float
from tasks.services.errors import safe_text

ENOUGH_BAD = 3  # fewer bad rows are bad rows, not a bad table
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
    suspect_ids: bool = False  # some went through a float, as their round numbers show
    lettered_ids: bool = False  # there are ids with letters: 12e34 is one of them, not a float
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
        found = path.stat()
    except OSError as error:
        raise TableRefused(f"{path}: cannot be read: {error.strerror or error}") from error
    if path.is_dir():  # its rows are read once, and each picture is looked at again when it is opened
        return (found.st_ino,)
    return found.st_ino, found.st_size, found.st_mtime_ns


def survey_rows(path: Path, settings: IngestSettings) -> Survey:
    """What the table is; TableRefused, with the way out, when it cannot be taken as a whole."""
    wanted = YFCC4K if settings.layout == "auto" else LAYOUTS[settings.layout]
    stamp = stamp_of(path) if path.exists() else ()  # before anything is read: it may change meanwhile
    table = open_table(path, settings.encoding, wanted)
    recognised = recognise(table, settings)
    layout = recognised.layout
    names = layout.pick(table.columns)
    if settings.swap_lat_lon:
        names["lat"], names["lon"] = names["lon"], names["lat"]
    check_columns(table, layout, names, settings)
    notes = (*table.notes, *recognised.notes(settings), *passed_over(layout, table))
    own = path.absolute() if table.format == "folder" else path.absolute().parent
    folder = Path(settings.images).expanduser().absolute() if settings.images else own
    return _Count(Survey(table, layout, names, 0, notes, folder, stamp), settings).done()


class _Count:
    """What is counted over all rows, and what it says of the table."""

    def __init__(self, start: Survey, settings: IngestSettings) -> None:
        self._survey, self._settings = start, settings
        self._rows = self._unreadable = self._floats = self._maybe_floats = self._not_numbers = 0
        self._lettered = False
        self._first_unreadable: tuple[int, str] | None = None
        self._first_float: tuple[int, str] | None = None
        self._first_not_number: tuple[int, str, str] | None = None
        self._long, self._positions = LongIds(), Positions()
        self._ids: list[pl.DataFrame] = []  # row, and hashes of the id and the content

    def done(self) -> Survey:
        for rows in self._survey.batches():
            self._rows += rows.height
            unreadable = rows.filter(pl.col("reason").is_not_null())
            self._unreadable += unreadable.height
            if unreadable.height and not self._first_unreadable:
                self._first_unreadable = unreadable["row"][0], unreadable["problem"][0]
            good = rows.filter(pl.col("reason").is_null())
            self._count_ids(good)
            self._count_positions(good)
        self._judge()
        return replace(
            self._survey,
            rows=self._rows,
            notes=(*self._survey.notes, *self._hints()),
            suspect_ids=self._settings.check_ids and self._long.damaged,
            lettered_ids=self._lettered,
            repeated=self._repeated(),
        )

    def _count_ids(self, rows: pl.DataFrame) -> None:
        has_ids, folder, text = "id" in self._survey.names, self._survey.folder, pl.col("source_id")
        rows = rows.with_columns(row_id(has_ids, folder)).filter(text.is_not_null())
        self._ids.append(rows.select("row", id_hash=text.hash(), content=row_content(folder).hash()))
        if not has_ids:
            return
        self._long.observe(rows)
        self._lettered = self._lettered or bool(rows.select(has_letters(text).any()).item())
        floats = rows.filter(written_as_float(text))
        self._floats += floats.height
        self._maybe_floats += floats.filter(may_be_hexadecimal(text)).height
        if floats.height and not self._first_float:
            self._first_float = floats["row"][0], floats["source_id"][0]

    def _count_positions(self, rows: pl.DataFrame) -> None:
        numbers = rows.drop_nulls(["lat", "lon"]).with_columns(lat_deg=read_degrees("lat"), lon_deg=read_degrees("lon"))
        bad = numbers.filter(pl.any_horizontal(pl.col("lat_deg", "lon_deg").is_null()))
        self._not_numbers += bad.height
        if bad.height and not self._first_not_number:
            name = "lat" if bad["lat_deg"][0] is None else "lon"
            self._first_not_number = bad["row"][0], self._survey.names[name], bad[name][0]
        good = numbers.drop_nulls(["lat_deg", "lon_deg"])
        named = country_numbers(good["country"])
        row, lat, lon = (good[name].to_numpy() for name in ("row", "lat_deg", "lon_deg"))
        self._positions.observe(row, lat, lon, named)

    def _judge(self) -> None:
        path, word = self._survey.table.path, self._survey.table.word
        if self._rows == 0:
            raise TableRefused(f"{path}: the file holds no rows")
        if self._first_unreadable and self._unreadable >= ENOUGH_BAD and self._unreadable * 2 > self._rows:
            number, problem = self._first_unreadable
            raise TableRefused(
                f"{path}: {self._unreadable:,} of {self._rows:,} rows cannot be read, the first in {word} {number}: "
                f"{problem}; is it separated by {self._survey.table.separator!r}?"
            )
        if self._settings.check_ids and (why := self._why_damaged(word)):
            fix = "export it again with ids as text, or, if they are right, add --set ingest.check_ids=false"
            raise TableRefused(f"{path}: {why}; {fix}")
        self._judge_positions(path, word)

    def _why_damaged(self, word: str) -> str | None:
        """What says that the ids went through a float; None when nothing does."""
        floats, long = self._floats - (self._maybe_floats if self._lettered else 0), self._long
        if self._first_float and floats >= max(ENOUGH_BAD, MOST * self._rows):
            number, text = self._first_float
            return f"{floats:,} of {self._rows:,} ids went through a float (first: {word} {number}, {text})"
        if long.first_zeros and long.rounded_off and long.numbers * 2 > self._rows:
            number, text = long.first_zeros
            said = f"{long.zeros:,} of {long.numbers:,} ids end in zeros: a float rounded them to its first digits"
            return f"{said} (first: {word} {number}, {text})"
        if long.first and long.whole_column and long.count >= MOST * self._rows:
            number, text = long.first
            return (
                f"{long.round:,} of {long.count:,} long ids are numbers a float can hold, so they went through one "
                f"and lost their last digits (first: {word} {number}, {text})"
            )
        return None

    def _judge_positions(self, path: Path, word: str) -> None:
        is_folder = self._survey.table.format == "folder"  # its photos are named one by one
        if (
            not is_folder
            and self._first_not_number
            and self._not_numbers >= ENOUGH_BAD
            and self._not_numbers * 2 > self._rows
        ):
            number, column, text = self._first_not_number
            comma = " with a decimal point instead of a comma" if "," in text else ", such as 48.8566"
            raise TableRefused(
                f"{path}: {self._not_numbers:,} of {self._rows:,} positions are not numbers of degrees (first: {word} "
                f"{number}, {column} {safe_text(text, limit=40)!r}); write them{comma}"
            )
        why = None if self._settings.keep_lat_lon else self._positions.why_exchanged(word)
        if why is None:
            return
        lat, lon = (self._survey.names[name] for name in ("lat", "lon"))
        if self._settings.swap_lat_lon:
            raise TableRefused(f"{path}: with --swap-lat-lon, {lat} and {lon} look exchanged: {why}; leave it away")
        raise TableRefused(
            f"{path}: columns {lat} and {lon} look exchanged: {why}; add --swap-lat-lon, or --keep-lat-lon if they are "
            "right"
        )

    def _hints(self) -> list[str]:
        land, rows, long = self._positions.land, self._positions.rows, self._long
        hints = []
        if self._settings.check_ids and long.some_rounded_off and long.first_zeros:
            number, text = long.first_zeros
            told = f"{long.zeros:,} of {long.numbers:,} long ids end in zeros"
            hints.append(f"{told} (first: {self._survey.table.word} {number}, {text}): did a float round them?")
        if 0 < rows < LEAST_ROWS and land.exchanged == rows and not self._settings.keep_lat_lon:
            hints.append(
                "every point lies at sea, and on land with latitude and longitude exchanged: is --swap-lat-lon missing?"
            )
        elif not self._settings.keep_lat_lon and (said := self._positions.hint()):
            hints.append(f"{said} (--swap-lat-lon)")
        named = benchmark_named(self._survey.table.path.name, self._survey.layout)
        if named and self._settings.split is None and "split" not in self._survey.names:
            hints.append(f"the file's name says {named}: --split benchmark keeps its photos out of training")
        return hints

    def _repeated(self) -> pl.DataFrame:
        ids = pl.concat(self._ids).lazy().filter(pl.col("id_hash").is_duplicated())
        return (
            ids.group_by("id_hash").agg(first=pl.col("row").min(), differs=pl.col("content").n_unique() > 1).collect()
        )
