"""The first look at a whole table, before anything is written: is it what it says, and can it be taken at all?

It streams through the file once and keeps sixteen bytes a row, so a table of millions needs tens of megabytes.
"""

import hashlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from schemas.settings.ingest import IngestSettings
from tasks.ingest.columns import check_columns, passed_over
from tasks.ingest.ids import MOST, LongIds, has_letters, may_be_hexadecimal, written_as_float
from tasks.ingest.layouts import LAYOUTS, YFCC4K, Layout
from tasks.ingest.recognise import benchmark_named, recognise
from tasks.ingest.refusal import Refusal, TableRefused
from tasks.ingest.sameness import read_degrees, row_content, row_id
from tasks.ingest.swap import LEAST_ROWS, Positions, country_named
from tasks.ingest.table import Table, open_table
from tasks.services.errors import safe_text

PIECE = 65_536  # positions looked up at once
_ONE_LINE = ("id", "path", "url", "lat", "lon")
ENOUGH_BAD = 3  # fewer bad rows are bad rows, not a bad table


@dataclass(frozen=True)
class Survey:
    """A table that can be taken, and what was learnt of it."""

    table: Table
    layout: Layout
    names: Mapping[str, str]  # field -> the table's own name of its column
    rows: int
    notes: tuple[str, ...]
    folder: Path  # of the pictures
    stamp: tuple[int, ...]  # of the file when it was looked at
    suspect_ids: bool = False  # some went through a float, as their round numbers show
    lettered_ids: bool = False  # there are ids with letters: 12e34 is one of them, no float
    repeated: Mapping[int, tuple[int, bool]] = field(default_factory=dict)
    """Hash of an id -> its first row, and whether its rows disagree."""

    def records(self) -> Iterator[tuple[int, dict[str, str | None] | Refusal]]:
        """Every row by the layout's field names."""
        self.check_unchanged()
        fields = list(self.names)
        one_line, numbers = (
            [self.names[name] for name in group if name in self.names] for group in (_ONE_LINE, ("lat", "lon"))
        )
        for number, values in self.table.rows(list(self.names.values()), one_line, numbers):
            yield number, values if isinstance(values, Refusal) else dict(zip(fields, values, strict=True))
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """TableRefused if the file is not the one that was looked at: what was found out does not hold for it."""
        if stamp_of(self.table.path) != self.stamp:
            raise TableRefused(f"{self.table.path}: the file was changed while it was read; run the command again")


def stamp_of(path: Path) -> tuple[int, ...]:
    """What changes when a file does."""
    try:
        found = path.stat()
    except OSError as error:
        raise TableRefused(f"{path}: cannot be read: {error.strerror or error}") from error
    return found.st_ino, found.st_size, found.st_mtime_ns


def picture_folder(path: Path, settings: IngestSettings) -> Path:
    """Where the table's pictures lie."""
    return Path(settings.images).expanduser().absolute() if settings.images else path.absolute().parent


def hash_id(text: str) -> int:
    """64 bits that stand for an id."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def survey(path: Path, settings: IngestSettings) -> Survey:
    """What the table is; TableRefused, with the way out, when it cannot be taken as a whole."""
    wanted = YFCC4K if settings.layout == "auto" else LAYOUTS[settings.layout]
    stamp = stamp_of(path) if path.is_file() else ()  # before anything is read: it may change meanwhile
    table = open_table(path, settings.encoding, wanted)
    recognised = recognise(table, settings)
    layout = recognised.layout
    names = layout.pick(table.columns)
    if settings.swap_lat_lon:
        names["lat"], names["lon"] = names["lon"], names["lat"]
    check_columns(table, layout, names, settings)
    notes = (*table.notes, *recognised.notes(settings), *passed_over(layout, table))
    first = Survey(table, layout, names, 0, notes, picture_folder(path, settings), stamp)
    return _Count(first, settings).done()


class _Count:
    """Goes through the rows once."""

    def __init__(self, start: Survey, settings: IngestSettings) -> None:
        self._survey, self._settings = start, settings
        self._rows = self._unreadable = self._floats = self._maybe_floats = self._no_numbers = 0
        self._lettered = False
        self._has_ids = "id" in start.names
        self._first_unreadable: tuple[int, Refusal] | None = None
        self._first_float: tuple[int, str] | None = None
        self._first_no_number: tuple[int, str, str] | None = None
        self._long, self._positions = LongIds(), Positions()
        self._hashes, self._contents, self._numbers = array("Q"), array("Q"), array("Q")
        self._piece: list[tuple[int, float, float, int]] = []

    def done(self) -> Survey:
        for number, record in self._survey.records():
            self._rows += 1
            if isinstance(record, Refusal):
                self._unreadable += 1
                self._first_unreadable = self._first_unreadable or (number, record)
            else:
                self._add(number, record)
        self._look_up()
        self._judge()
        return replace(
            self._survey,
            rows=self._rows,
            notes=(*self._survey.notes, *self._hints()),
            suspect_ids=self._settings.check_ids and self._long.damaged,
            lettered_ids=self._lettered,
            repeated=self._repeated(),
        )

    def _add(self, number: int, record: dict[str, str | None]) -> None:
        text = row_id(record, self._has_ids, self._survey.folder)
        if text is not None:
            self._hashes.append(hash_id(text))
            self._contents.append(hash_id(row_content(record, self._survey.folder)))
            self._numbers.append(number)
            if self._has_ids:
                self._add_id(number, text)
        lat, lon = (read_degrees(record[name] or "") for name in ("lat", "lon"))
        if record["lat"] and record["lon"] and (lat is None or lon is None):
            self._no_numbers += 1
            name = "lat" if lat is None else "lon"
            self._first_no_number = self._first_no_number or (number, self._survey.names[name], record[name] or "")
        if lat is not None and lon is not None:
            self._piece.append((number, lat, lon, country_named(record.get("country"))))
            if len(self._piece) == PIECE:
                self._look_up()

    def _add_id(self, number: int, text: str) -> None:
        self._long.add(number, text)
        self._lettered = self._lettered or has_letters(text)
        if written_as_float(text):
            self._floats += 1
            self._maybe_floats += may_be_hexadecimal(text)
            self._first_float = self._first_float or (number, text)

    def _look_up(self) -> None:
        if self._piece:
            number, lat, lon, country = (np.array(column) for column in zip(*self._piece, strict=True))
            self._positions.add(number, lat.astype(float), lon.astype(float), country)
            self._piece = []

    def _judge(self) -> None:
        path, word = self._survey.table.path, self._survey.table.word
        if self._rows == 0:
            raise TableRefused(f"{path}: the file holds no rows")
        if self._first_unreadable and self._unreadable >= ENOUGH_BAD and self._unreadable * 2 > self._rows:
            number, refusal = self._first_unreadable
            raise TableRefused(
                f"{path}: {self._unreadable:,} of {self._rows:,} rows cannot be read, the first in {word} {number}: "
                f"{refusal.problem}; is it separated by {self._survey.table.separator!r}?"
            )
        self._judge_ids(path, word)
        self._judge_positions(path, word)

    def _judge_ids(self, path: Path, word: str) -> None:
        if not self._settings.check_ids:
            return
        fix = "export it again with ids as text, or, if they are right, add --set ingest.check_ids=false"
        floats = self._floats - (self._maybe_floats if self._lettered else 0)
        if self._first_float and floats >= max(ENOUGH_BAD, MOST * self._rows):
            number, text = self._first_float
            raise TableRefused(
                f"{path}: {floats:,} of {self._rows:,} ids went through a float (first: {word} {number}, {text}); {fix}"
            )
        if self._long.rounded_off and self._long.numbers * 2 > self._rows:
            assert self._long.first_zeros is not None
            number, text = self._long.first_zeros
            raise TableRefused(
                f"{path}: {self._long.zeros:,} of {self._long.numbers:,} ids end in zeros: a float rounded them to its "
                f"first digits (first: {word} {number}, {text}); {fix}"
            )
        if self._long.whole_column and self._long.count >= MOST * self._rows:
            assert self._long.first is not None
            number, text = self._long.first
            raise TableRefused(
                f"{path}: {self._long.round:,} of {self._long.count:,} long ids are numbers a float can hold, so they "
                f"went through one and lost their last digits (first: {word} {number}, {text}); {fix}"
            )

    def _judge_positions(self, path: Path, word: str) -> None:
        if self._first_no_number and self._no_numbers >= ENOUGH_BAD and self._no_numbers * 2 > self._rows:
            number, column, text = self._first_no_number
            comma = " with a decimal point instead of a comma" if "," in text else ", such as 48.8566"
            raise TableRefused(
                f"{path}: {self._no_numbers:,} of {self._rows:,} positions are no numbers of degrees (first: {word} "
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
        land, rows = self._positions.land, self._positions.rows
        hints = []
        if self._settings.check_ids and self._long.some_rounded_off and self._long.first_zeros:
            number, text = self._long.first_zeros
            told = f"{self._long.zeros:,} of {self._long.numbers:,} long ids end in zeros"
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

    def _repeated(self) -> dict[int, tuple[int, bool]]:
        hashes, contents = np.array(self._hashes, dtype=np.uint64), np.array(self._contents, dtype=np.uint64)
        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        same = ordered[1:] == ordered[:-1]
        found: dict[int, tuple[int, bool]] = {}
        for place in np.flatnonzero(same).tolist():
            one, two = order[place], order[place + 1]
            first, differs = found.get(int(ordered[place]), (self._numbers[one], False))
            found[int(ordered[place])] = first, differs or bool(contents[one] != contents[two])
        return found
