"""A table of photos in batches of rows: CSV, TSV, JSON lines or Parquet, never more than a batch in memory.

All values are text as it stands in the file. A reader that guesses types turns long ids into floats, and an id once
damaged cannot be mended. Python's csv and json modules are used because they tell the line of a row.
"""

import csv
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from schemas.settings.ingest import IngestSettings
from tasks.ingest.folder import COLUMNS, folder_rows
from tasks.ingest.layouts import Layout
from tasks.ingest.refusal import Refusal, TableRefused

BATCH = 20_000  # rows
FORMATS = {
    **{".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".txt": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"},
    **{".parquet": "parquet", ".pq": "parquet"},
}
# What pandas, spreadsheets and databases write for an empty cell. NA is not among them: it is Namibia.
EMPTY = ("", "nan", "null", "none", "n/a", "#n/a", "<na>", "nat", "\\n")
REFUSAL = ("reason", "problem", "column", "given")  # columns of a row that cannot be read


@dataclass(frozen=True)
class Table:
    """An opened table: what it is and which columns it has."""

    path: Path
    format: str
    columns: tuple[str, ...]
    encoding: str = "utf-8-sig"
    separator: str = ","
    headless: bool = False
    notes: tuple[str, ...] = field(default=())
    found: tuple[pl.DataFrame, list[tuple[int, Refusal]]] | None = field(default=None, compare=False)
    """Of a folder: its rows, read once, and those that are refused."""

    @property
    def word(self) -> str:
        """How a row is counted: as an editor does, as a database does, or by the pictures of a folder."""
        return {"parquet": "row", "folder": "picture"}.get(self.format, "line")

    def batches(self, names: Mapping[str, str], size: int = BATCH) -> Iterator[pl.DataFrame]:
        """Every row in order: its number `row`, and for each field of `names` (field -> column) its text or null.

        A row that cannot be read has the columns of REFUSAL filled instead.
        """
        readers = {"parquet": _parquet_batches, "jsonl": _json_batches, "folder": _folder_batches}
        try:
            for good, bad in readers.get(self.format, _csv_batches)(self, names, size):
                yield _frame(good, bad, list(names))
        except UnicodeError as error:
            raise _wrong_encoding(self, error) from error


Bad = list[tuple[int, Refusal]]
Batch = tuple[pl.DataFrame, Bad]  # rows that can be read, and the others
Records = Iterator[tuple[int, list[str | None] | Refusal]]  # number of a row and its fields, or why it has none


def _frame(good: pl.DataFrame, bad: Bad, fields: list[str]) -> pl.DataFrame:
    text = pl.col(fields).str.strip_chars()
    good = good.select("row", pl.when(~text.str.to_lowercase().is_in(EMPTY)).then(text))
    rows = [(number, refusal.reason, refusal.problem, refusal.column, refusal.given) for number, refusal in bad]
    schema = {"row": pl.Int64, **dict.fromkeys(REFUSAL, pl.String)}
    return pl.concat([good, pl.DataFrame(rows, schema, orient="row")], how="diagonal").sort("row")


def _record_batches(records: Records, fields: Sequence[str], size: int) -> Iterator[Batch]:
    schema = {"row": pl.Int64, **dict.fromkeys(fields, pl.String)}
    while batch := list(itertools.islice(records, size)):
        good = [(number, *values) for number, values in batch if not isinstance(values, Refusal)]
        bad = [(number, values) for number, values in batch if isinstance(values, Refusal)]
        yield pl.DataFrame(good, schema, orient="row"), bad


def open_table(path: Path, encoding: str | None = None, layout: Layout | None = None) -> Table:
    """The table at a path with its columns; TableRefused for any other file. `layout` may know columns by number."""
    if path.is_dir():
        rows, bad, notes = folder_rows(path)
        return Table(path, "folder", COLUMNS, notes=notes, found=(rows, bad))
    kind = FORMATS.get(path.suffix.casefold())
    if kind is None:
        raise TableRefused(
            f"{path}: the name must end in {', '.join(FORMATS)}, to say what the file is; or give a folder of photos"
        )
    table = Table(path, kind, (), encoding or "utf-8-sig", "\t" if kind == "tsv" else ",")
    try:
        if kind == "parquet":
            return _with_columns(table, _parquet_columns(path))
        return _with_columns(table, _json_columns(table)) if kind == "jsonl" else _open_csv(table, layout)
    except UnicodeError as error:
        raise _wrong_encoding(table, error) from error
    except OSError as error:
        raise TableRefused(f"{path}: cannot be read: {error.strerror or error}") from error


def _with_columns(table: Table, names: Sequence[str]) -> Table:
    # Unnamed columns (an index written by a spreadsheet) are harmless as long as none is requested.
    twice = [name for name, times in Counter(n.casefold() for n in names if n).items() if times > 1]
    if twice:
        raise TableRefused(f"{table.path}: column '{twice[0]}' stands twice in the header; rename or delete one")
    return replace(table, columns=tuple(names))


def _wrong_encoding(table: Table, error: UnicodeError) -> TableRefused:
    with table.path.open(encoding=table.encoding, errors="replace") as file:
        line = next((number for number, text in enumerate(file, 1) if "\ufffd" in text), 1)
    return TableRefused(
        f"{table.path}: line {line} is not {table.encoding.upper().removesuffix('-SIG')} text ({str(error)[-60:]}); "
        "save the file as UTF-8, or name its --encoding, such as --encoding cp1252 for files of older Windows"
    )


def _folder_batches(table: Table, names: Mapping[str, str], size: int) -> Iterator[Batch]:
    rows, bad = table.found or folder_rows(table.path)[:2]
    columns = [pl.col(column).alias(name) for name, column in names.items()]
    for first in range(1, rows.height + len(bad) + 1, size):
        numbers = range(first, first + size)
        yield (
            rows.filter(pl.col("row").is_between(first, first + size - 1)).select("row", *columns),
            [(number, refusal) for number, refusal in bad if number in numbers],
        )


# CSV and TSV -------------------------------------------------------------------------------------------------


def _open_csv(table: Table, layout: Layout | None) -> Table:
    with table.path.open(encoding=table.encoding, newline="") as file:
        first = next((line for line in file if line.strip()), "").rstrip("\r\n")
    if not first:
        raise TableRefused(f"{table.path}: the file is empty")
    if table.separator not in first and (separator := max("\t;,|", key=first.count)) in first:
        note = f"fields are separated by {'tabs' if separator == chr(9) else repr(separator)}"
        table = replace(table, separator=separator, notes=(note,))
    fields = first.split("\t")
    if layout is not None and len(fields) in layout.headless and fields[1].isdigit():
        return replace(table, format="tsv", columns=layout.headless[len(fields)], headless=True)
    number, header = next(_csv_records(table), (1, Refusal("unreadable_row", "there are none")))
    if isinstance(header, Refusal):
        raise TableRefused(f"{table.path}: line {number}, the column names: {header.problem}")
    return _with_columns(table, [" ".join((name or "").split()) for name in header])


def _csv_records(table: Table) -> Records:
    """Every row that is not blank, the header among them, with the number of its first line."""
    width = len(table.columns)
    with table.path.open(encoding=table.encoding, newline="") as file:
        no_quotes: dict[str, Any] = {"quoting": csv.QUOTE_NONE} if table.headless else {}
        lines: list[str] = []  # of the row that is read

        def read_lines() -> Iterator[str]:
            for line in file:
                lines.append(line)
                yield line

        reader = csv.reader(read_lines(), delimiter=table.separator, strict=True, **no_quotes)
        while True:
            number, fields, problem = reader.line_num + 1, list[str](), ""
            lines.clear()
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                problem = f"not readable as fields by {table.separator!r}: {error}"
            if fields and width and len(fields) != width:
                problem = f"{len(fields)} fields, the header has {width}"
            # A quote left open may close in a later row: both are rows, read as one of the right width.
            swallowed = (next(csv.reader([line], delimiter=table.separator)) for line in lines[1:])
            if lines and lines[0].count(table.separator) + 1 >= width > 1 and width in map(len, swallowed):
                problem = problem or "though a later line has all fields of a row"
            if not problem:
                if any(map(str.strip, fields)):
                    yield number, [*fields]
                continue
            if reader.line_num > number:  # it would swallow rows without a trace
                raise TableRefused(
                    f"{table.path}: lines {number} to {reader.line_num} are read as one row ({problem}); close "
                    f"the quote in line {number}, or write it twice"
                )
            yield number, Refusal("ragged_row" if fields else "unreadable_row", problem, given=", ".join(fields))


def _csv_batches(table: Table, names: Mapping[str, str], size: int) -> Iterator[Batch]:
    places = [table.columns.index(column) for column in names.values()]
    rows = itertools.islice(_csv_records(table), 0 if table.headless else 1, None)
    picked = (
        (number, fields if isinstance(fields, Refusal) else [fields[place] for place in places])
        for number, fields in rows
    )
    yield from _record_batches(picked, list(names), size)


# JSON lines --------------------------------------------------------------------------------------------------


def _json_columns(table: Table) -> list[str]:
    """The fields of all rows, in the order they come up.

    An object leaves out what it has no value for: a licence that only the last row names counts as much as one that
    all of them name, so the whole file is read.
    """
    names: dict[str, None] = {}
    for number, row in _json_objects(table):
        if not isinstance(row, Refusal):
            names.update(dict.fromkeys(row))
        elif not names:
            raise TableRefused(f"{table.path}: line {number} is {row.problem}; write one JSON object a line")
    if not names:
        raise TableRefused(f"{table.path}: the file holds no rows")
    return list(names)


def _json_objects(table: Table) -> Iterator[tuple[int, dict[str, object] | Refusal]]:
    with table.path.open(encoding=table.encoding) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:  # numbers stay as they are written
                row = json.loads(line, parse_float=str, parse_int=str, parse_constant=str)
            except (ValueError, RecursionError) as error:
                yield number, Refusal("unreadable_row", f"not JSON ({str(error)[:60]})", given=line)
                continue
            is_row = isinstance(row, dict)
            yield number, row if is_row else Refusal("unreadable_row", "not an object with fields", given=line)


def _json_batches(table: Table, names: Mapping[str, str], size: int) -> Iterator[Batch]:
    picked = (
        (number, row if isinstance(row, Refusal) else _json_texts(row, names.values()))
        for number, row in _json_objects(table)
    )
    yield from _record_batches(picked, list(names), size)


def _json_texts(row: Mapping[str, object], columns: Iterable[str]) -> list[str | None] | Refusal:
    texts = [(name, row.get(name)) for name in columns]
    for name, text in texts:
        if text is not None and not isinstance(text, str):
            return Refusal("unreadable_row", "neither text nor a number", name, json.dumps(text))
        if text and not text.isascii() and text.encode(errors="replace").decode() != text:
            return Refusal("unreadable_row", "holds half of a character (\\ud800)", name)
    return [text for _, text in texts if text is None or isinstance(text, str)]


# Parquet -----------------------------------------------------------------------------------------------------


def _parquet_columns(path: Path) -> list[str]:
    try:
        with pq.ParquetFile(path) as file:
            return list(file.schema_arrow.names)
    except pa.ArrowException as error:
        raise TableRefused(f"{path}: is not a readable Parquet file: {_first_line(error)}") from error


def check_parquet(path: Path, names: Mapping[str, str], settings: IngestSettings) -> None:
    """TableRefused for more rows than are allowed, and for a column that cannot hold what the field of its name should.

    Other tables are as large as they look; a megabyte of Parquet may hold a hundred million rows.
    """
    metadata = pq.read_metadata(path)
    if metadata.num_rows > settings.max_rows:
        raise TableRefused(
            f"{path}: holds {metadata.num_rows:,} rows, more than ingest.max_rows ({settings.max_rows:,}), and each "
            f"may take a kilobyte of memory: split the file, or give --set ingest.max_rows={metadata.num_rows}"
        )
    schema = metadata.schema.to_arrow_schema()
    for name, column in names.items():
        kind = schema.field(column).type
        if name == "id" and settings.check_ids and pa.types.is_floating(kind):
            raise TableRefused(
                f"{path}: column {column} stores ids as {kind}, which cannot hold long ids; export it again with "
                f"text ids (pandas: dtype={{'{column}': str}})"
            )
        if "binary" in str(kind) or (pa.types.is_nested(kind) and not pa.types.is_dictionary(kind)):
            raise TableRefused(f"{path}: column {column} holds {str(kind)[:60]}; store it as text or a number")


def _parquet_batches(table: Table, names: Mapping[str, str], size: int) -> Iterator[Batch]:
    """PyArrow reads it batch by batch, and its casts give every type the text that it is written with."""
    done = 0
    try:
        with pq.ParquetFile(table.path) as file:
            for batch in file.iter_batches(batch_size=size, columns=list(dict.fromkeys(names.values()))):
                batch.validate(full=True)
                texts = {name: pc.cast(batch.column(column), pa.large_string()) for name, column in names.items()}
                rows = {name: pl.Series(text, dtype=pl.String) for name, text in texts.items()}
                yield pl.DataFrame({"row": range(done + 1, done + batch.num_rows + 1), **rows}), []
                done += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise TableRefused(f"{table.path}: cannot be read after row {done:,}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:120]
