"""A table of photos, read row by row: CSV, TSV, JSON lines or Parquet, never more than a piece of it in memory.

All values are text as it stands in the file. A reader that guesses types turns long ids into floats, and an id once
damaged cannot be mended.
"""

import codecs
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.ingest.layouts import Layout
from tasks.ingest.lines import LONGEST_LINE, split_rows
from tasks.ingest.refusal import Refusal, TableRefused

FORMATS = {
    **{".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".txt": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"},
    **{".parquet": "parquet", ".pq": "parquet"},
}
PIECE = 8192  # rows of a Parquet file decoded at once
PEEK_ROWS = 1000  # of JSON lines, to learn which fields there are
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}

Values = tuple[str | None, ...]


@dataclass(frozen=True)
class Table:
    """An opened table: what it is and which columns it has."""

    path: Path
    format: str
    columns: tuple[str, ...]
    encoding: str = "utf-8"
    separator: str = ","
    headless: bool = False
    notes: tuple[str, ...] = field(default=())

    @property
    def word(self) -> str:
        """How a row is counted: as an editor does, or as a database does."""
        return "row" if self.format == "parquet" else "line"

    def rows(
        self, wanted: Sequence[str], one_line: Sequence[str] = (), numbers: Sequence[str] = ()
    ) -> Iterator[tuple[int, Values | Refusal]]:
        """Every row with its number and the wanted columns' values, empty ones None; or why it cannot be read.

        `one_line` are columns that never hold a line break, `numbers` those that are numbers in every row.
        """
        if self.format == "parquet":
            yield from _parquet_rows(self, wanted)
        elif self.format == "jsonl":
            yield from _json_rows(self, wanted)
        else:
            yield from _csv_rows(self, wanted, one_line, numbers)


def open_table(path: Path, encoding: str | None = None, layout: Layout | None = None) -> Table:
    """The table at a path, its columns known; TableRefused when it is none. `layout` may know columns by number."""
    kind = FORMATS.get(path.suffix.casefold())
    if kind is None:
        raise TableRefused(f"{path}: the name must end in {', '.join(FORMATS)}, to say what the file is")
    if not path.is_file():
        raise TableRefused(f"{path}: there is no such file" if not path.exists() else f"{path}: is not a file")
    try:
        if path.stat().st_size == 0:
            raise TableRefused(f"{path}: the file is empty")
        if kind == "parquet":
            return _open_parquet(path)
        with path.open("rb") as file:
            start = file.read(65_536)
    except OSError as error:
        raise TableRefused(f"{path}: cannot be read: {error.strerror or error}") from error
    encoding = encoding or next((name for mark, name in _MARKS.items() if start.startswith(mark)), "utf-8")
    if b"\0" in start and not encoding.replace("-", "").casefold().startswith(("utf16", "utf32")):
        raise TableRefused(f"{path}: holds zero bytes, so it is no text; save it as UTF-8, or name its --encoding")
    table = Table(path, kind, (), encoding, "\t" if kind == "tsv" else ",")
    try:
        return _open_json(table) if kind == "jsonl" else _open_csv(table, layout)
    except UnicodeError as error:
        raise _wrong_encoding(table, error) from error


# CSV and TSV -------------------------------------------------------------------------------------------------


def _open_csv(table: Table, layout: Layout | None) -> Table:
    with table.path.open(encoding=table.encoding, newline="") as file:
        first = file.readline(LONGEST_LINE)
        while first and not first.strip():
            first = file.readline(LONGEST_LINE)
    if not first.strip():
        raise TableRefused(f"{table.path}: the file is empty")
    if len(first) >= LONGEST_LINE:
        raise TableRefused(f"{table.path}: its first line has no end; is it a {table.format} file?")
    notes: list[str] = []
    separator = table.separator
    if separator not in first:
        found = max("\t;,|", key=first.count)
        if found in first:
            separator = found
            notes.append(f"fields are separated by {'tabs' if found == chr(9) else repr(found)}")
    if layout is not None and separator == "\t" and len(first.rstrip("\r\n").split("\t")) in layout.headless:
        names = first.rstrip("\r\n").split("\t")
        if any(_is_number(name) for name in names):
            columns = layout.headless[len(names)]
            return Table(table.path, "tsv", columns, table.encoding, separator, True, tuple(notes))
    _, header = next(split_rows(table.path, table.encoding, separator), (1, Refusal("unreadable_row", "it is blank")))
    if isinstance(header, Refusal):
        raise TableRefused(
            f"{table.path}: the first line must hold the column names, and is unreadable: {header.problem}"
        )
    names = [" ".join(name.split()) for name in header]
    _check_names(table.path, names)
    if sum(_is_number(name) for name in names) >= 2:
        raise TableRefused(
            f"{table.path}: the first line looks like data ({', '.join(names)[:80]}); put the column names above it, "
            "such as id,path,lat,lon"
        )
    return Table(table.path, table.format, tuple(names), table.encoding, separator, False, tuple(notes))


def _check_names(path: Path, names: Sequence[str]) -> None:
    # Unnamed columns (an index written by a spreadsheet) harm nobody, as long as none is asked for.
    twice = [name for name, times in Counter(n.casefold() for n in names if n).items() if times > 1]
    if twice:
        raise TableRefused(f"{path}: column '{twice[0]}' stands twice in the header; rename or delete one")


def _csv_rows(
    table: Table, wanted: Sequence[str], one_line: Sequence[str], numbers: Sequence[str]
) -> Iterator[tuple[int, Values | Refusal]]:
    width = len(table.columns)
    places, single, counted = (
        [table.columns.index(name) for name in names] for names in (wanted, one_line, numbers)
    )  # fmt: skip
    rows = split_rows(table.path, table.encoding, table.separator, not table.headless, single, counted)
    try:
        if not table.headless:
            next(rows, None)
        for number, fields in rows:
            if isinstance(fields, Refusal):
                yield number, fields
            elif len(fields) != width:
                shown = table.separator.join(fields)
                yield number, Refusal("ragged_row", f"{len(fields)} fields, the header has {width}", given=shown)
            else:
                yield number, tuple(_text(fields[place]) for place in places)
    except UnicodeError as error:
        raise _wrong_encoding(table, error) from error


def _text(value: str) -> str | None:
    stripped = value.strip()
    return stripped or None


def decoded(value: str | None) -> str | None:
    """Text that was written as in an address, with + for a space."""
    return unquote_plus(value) if value else value


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _wrong_encoding(table: Table, error: UnicodeError) -> TableRefused:
    line = 0
    if table.encoding.startswith("utf-8"):
        with table.path.open("rb") as file:
            for line, raw in enumerate(file, 1):  # noqa: B007 - the number is what is looked for
                try:
                    raw.decode("utf-8")
                except UnicodeDecodeError:
                    break
    where = f"line {line} " if line else ""
    return TableRefused(
        f"{table.path}: {where}is not {table.encoding.upper().removesuffix('-SIG')} text ({str(error)[-60:]}); save "
        "the file as UTF-8, or say what it is with --encoding, such as --encoding cp1252 for files of older Windows"
    )


# JSON lines --------------------------------------------------------------------------------------------------


class _Written(str):
    """A JSON number as it was written."""


def _open_json(table: Table) -> Table:
    names: dict[str, None] = {}
    for number, line in itertools.islice(_json_lines(table), PEEK_ROWS):
        row = _json_object(line)
        if isinstance(row, dict):
            names.update(dict.fromkeys(row))
        elif not names:
            raise TableRefused(f"{table.path}: line {number} is {row}; write one JSON object a line")
    if not names:
        raise TableRefused(f"{table.path}: the file holds no rows")
    _check_names(table.path, list(names))
    return Table(table.path, "jsonl", tuple(names), table.encoding)


def _json_lines(table: Table) -> Iterator[tuple[int, str]]:
    with table.path.open(encoding=table.encoding) as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            if len(line) == LONGEST_LINE:
                raise TableRefused(f"{table.path}: line {number} is longer than {LONGEST_LINE:,} characters")
            if line.strip():
                yield number, line


def _json_object(line: str) -> dict[str, Any] | str:
    try:
        row = json.loads(line, parse_float=_Written, parse_int=_Written)
    except (ValueError, RecursionError) as error:
        return f"not JSON ({str(error)[:60]})"
    return row if isinstance(row, dict) else "no object with fields"


def _json_rows(table: Table, wanted: Sequence[str]) -> Iterator[tuple[int, Values | Refusal]]:
    try:
        for number, line in _json_lines(table):
            row = _json_object(line)
            if isinstance(row, str):
                yield number, Refusal("unreadable_row", row, given=line)
                continue
            odd = next((name for name in wanted if isinstance(row.get(name), dict | list | bool)), None)
            if odd is not None:
                given = json.dumps(row[odd], default=str)
                yield number, Refusal("unreadable_row", "neither text nor a number", odd, given)
                continue
            values = tuple(None if (v := row.get(name)) is None else _text(str(v)) for name in wanted)
            halved = next((name for name, v in zip(wanted, values, strict=True) if v and not _is_text(v)), None)
            if halved is not None:
                yield number, Refusal("unreadable_row", "holds half of a character (\\ud800)", halved)
            else:
                yield number, values
    except UnicodeError as error:
        raise _wrong_encoding(table, error) from error


# Parquet -----------------------------------------------------------------------------------------------------


def _is_text(value: str) -> bool:
    """Whether it can be stored: JSON may hold one half of a character that needs two."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _open_parquet(path: Path) -> Table:
    try:
        with pq.ParquetFile(path) as file:
            names, rows = file.schema_arrow.names, file.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        said = str(error).splitlines()[0][:120]
        raise TableRefused(f"{path}: is not a readable Parquet file: {said}") from error
    if rows == 0:
        raise TableRefused(f"{path}: the file holds no rows")
    _check_names(path, names)
    return Table(path, "parquet", tuple(names))


def parquet_type(table: Table, column: str) -> pa.DataType | None:
    """The type a Parquet table stores a column with; None for text formats."""
    return pq.read_schema(table.path).field(column).type if table.format == "parquet" else None


def _parquet_rows(table: Table, wanted: Sequence[str]) -> Iterator[tuple[int, Values | Refusal]]:
    number = 0
    try:
        with pq.ParquetFile(table.path) as file:
            for batch in file.iter_batches(batch_size=PIECE, columns=list(wanted)):
                columns = [batch.column(name).to_pylist() for name in wanted]
                for values in zip(*columns, strict=True):
                    number += 1
                    yield number, tuple(_cell(value) for value in values)
    except (pa.ArrowException, OSError) as error:
        said = str(error).splitlines()[0][:120]
        raise TableRefused(f"{table.path}: breaks off after row {number}: {said}") from error


def _cell(value: Any) -> str | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, datetime | date):
        return value.isoformat()
    return _text(repr(value) if isinstance(value, float) else str(value))
