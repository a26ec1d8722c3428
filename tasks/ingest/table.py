"""A table of photos in batches of rows: CSV, TSV, JSON lines or Parquet, never more than a batch in memory.

All values are text as it stands in the file. A reader that guesses types turns long ids into floats, and an id once
damaged cannot be mended. Python's csv and json modules are used because they tell the line of a row.
"""

import csv
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.settings.ingest import IngestSettings
from tasks.ingest.folder import COLUMNS, folder_rows
from tasks.ingest.layouts import Layout
from tasks.ingest.refusal import REFUSAL, Refusal, TableRefused

BATCH = 20_000  # rows
FORMATS = {
    **{".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".txt": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"},
    **{".parquet": "parquet", ".pq": "parquet"},
}
# What pandas, spreadsheets and databases write for an empty cell. NA is not among them: it is Namibia.
EMPTY = ("", "nan", "null", "none", "n/a", "#n/a", "<na>", "nat", "\\n")

# What rows of one id must agree in: all that is stored of them. `country` only helps to check.
STORED = (
    *("path", "url", "lat", "lon", "licence", "creator", "attribution", "captured_at", "compass_angle"),
    *("split", "kind", "sequence"),
)
FIELDS = ("id", *STORED, "country")

Records = Iterator[tuple[int, Sequence[str | None] | Refusal]]  # number of a row and its fields, or why it has none


@dataclass(frozen=True)
class Table:
    """An opened table: what it is and which columns it has."""

    path: Path
    format: str
    columns: tuple[str, ...]
    encoding: str = "utf-8-sig"
    separator: str = ","
    header_line: int = 0  # of a CSV file; 0: it has no header
    notes: tuple[str, ...] = ()
    photos: pl.DataFrame = field(default_factory=pl.DataFrame, compare=False)  # of a folder: its rows, read once

    @property
    def word(self) -> str:
        """How a row is counted: as an editor does, as a database does, or by the pictures of a folder."""
        return {"parquet": "row", "folder": "picture"}.get(self.format, "line")

    @property
    def headless(self) -> bool:
        """Whether its columns are known by their number."""
        return self.format == "tsv" and not self.header_line

    def batches(self, names: Mapping[str, str], size: int = BATCH) -> Iterator[pl.DataFrame]:
        """Every row in order: its number `row`, and for each field of `names` (field -> column) its text or null.

        A row that cannot be read has the columns of REFUSAL filled instead.
        """
        readers = {"parquet": _parquet_batches, "folder": _folder_batches}
        text = pl.col(list(names)).str.strip_chars()
        cells = pl.when(~text.str.to_lowercase().is_in(EMPTY)).then(text)
        try:
            for rows in readers.get(self.format, _text_batches)(self, names, size):
                missing = [pl.lit(None, pl.String).alias(name) for name in REFUSAL if name not in rows.columns]
                yield rows.with_columns(cells, *missing)
        except UnicodeError as error:
            raise _wrong_encoding(self, error) from error


def read_degrees(name: str) -> pl.Expr:
    """A field as a finite number; null where it is not one."""
    value = pl.col(name).cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value)


def row_id(has_ids: bool, folder: Path) -> pl.Expr:
    """The row's own id; its path where the table has no ids, relative to the picture folder where it lies in it.

    In Unicode's composed form; files made on a Mac often have the other one.
    """
    root = f"{os.path.normpath(folder)}/"

    def shorten(path: str) -> str:
        return os.path.normpath(path.replace("\\", "/")).removeprefix(root)

    text = pl.col("id" if has_ids else "path").str.normalize("NFC")
    return (text if has_ids else text.map_elements(shorten, pl.String)).alias("source_id")


def _text_batches(table: Table, names: Mapping[str, str], size: int) -> Iterator[pl.DataFrame]:
    schema = {"row": pl.Int64, **dict.fromkeys([*names, *REFUSAL], pl.String)}
    read = _json_records if table.format == "jsonl" else _csv_records
    no_fields, no_refusal = (None,) * len(names), (None,) * len(REFUSAL)
    rows = (
        (number, *no_fields, *astuple(record)) if isinstance(record, Refusal) else (number, *record, *no_refusal)
        for number, record in read(table, list(names.values()))
    )
    while batch := list(itertools.islice(rows, size)):
        yield pl.DataFrame(batch, schema, orient="row")


def _folder_batches(table: Table, names: Mapping[str, str], size: int) -> Iterator[pl.DataFrame]:
    columns = [pl.col(column).alias(name) for name, column in names.items()]
    for rows in table.photos.iter_slices(size):
        yield rows.select("row", *columns, *REFUSAL)


def open_table(path: Path, encoding: str | None = None, layout: Layout | None = None) -> Table:
    """The table at a path with its columns; TableRefused for any other file. `layout` may know columns by number."""
    if path.is_dir():
        photos, notes = folder_rows(path)
        return Table(path, "folder", COLUMNS, notes=notes, photos=photos)
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


# CSV and TSV -------------------------------------------------------------------------------------------------


def _open_csv(table: Table, layout: Layout | None) -> Table:
    with table.path.open(encoding=table.encoding, newline="") as file:
        number, first = next(((number, line) for number, line in enumerate(file, 1) if line.strip()), (0, ""))
    if not first:
        raise TableRefused(f"{table.path}: the file is empty")
    if table.separator not in first and (separator := max("\t;,|", key=first.count)) in first:
        note = f"fields are separated by {'tabs' if separator == chr(9) else repr(separator)}"
        table = replace(table, separator=separator, notes=(note,))
    fields = first.rstrip("\r\n").split("\t")
    if layout is not None and len(fields) in layout.headless and fields[1].isdigit():
        return replace(table, format="tsv", separator="\t", columns=layout.headless[len(fields)])
    try:
        header = next(csv.reader([first], delimiter=table.separator, strict=True))
    except csv.Error as error:
        raise TableRefused(f"{table.path}: line {number}, the column names: {error}") from error
    return replace(_with_columns(table, [" ".join(name.split()) for name in header]), header_line=number)


def _csv_records(table: Table, columns: Sequence[str]) -> Records:
    """Every row below the header that is not blank, with the number of its first line."""
    width, places = len(table.columns), [table.columns.index(column) for column in columns]
    with table.path.open(encoding=table.encoding, newline="") as file:
        reader = csv.reader(file, delimiter=table.separator, strict=True, quotechar=None if table.headless else '"')
        while True:
            number, fields, problem = reader.line_num + 1, list[str](), ""
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                problem = f"not readable as fields by {table.separator!r}: {error}"
            if number <= table.header_line:
                continue
            if fields and len(fields) != width:
                problem = f"{len(fields)} fields, the header has {width}"
            # A quote left open may close in a later row: both are rows, read as one of the right width.
            broken = [field for field in fields if "\n" in field] if width > 1 else []
            if any(field.count(table.separator) == field.count("\n") * (width - 1) for field in broken):
                problem = problem or "though a later line has all fields of a row"
            if not problem:
                if any(map(str.strip, fields)):
                    yield number, [fields[place] for place in places]
            elif reader.line_num > number:  # it would swallow rows without a trace
                raise TableRefused(
                    f"{table.path}: lines {number} to {reader.line_num} are read as one row ({problem}); close "
                    f"the quote in line {number}, or write it twice"
                )
            else:
                yield number, Refusal("ragged_row" if fields else "unreadable_row", problem, given=", ".join(fields))


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


def _json_records(table: Table, columns: Sequence[str]) -> Records:
    for number, row in _json_objects(table):
        yield number, row if isinstance(row, Refusal) else _json_texts(row, columns)


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


def _parquet_batches(table: Table, names: Mapping[str, str], size: int) -> Iterator[pl.DataFrame]:
    """PyArrow reads it batch by batch, and its casts give every type the text that it is written with."""
    done = 0
    columns = list(dict.fromkeys(names.values()))
    texts = pa.schema([(column, pa.large_string()) for column in columns])
    fields = [pl.col(column).alias(name) for name, column in names.items()]
    try:
        with pq.ParquetFile(table.path) as file:
            for batch in file.iter_batches(batch_size=size, columns=columns):
                batch.validate(full=True)
                rows = pl.DataFrame(batch.select(columns).cast(texts))
                number = pl.int_range(done + 1, done + batch.num_rows + 1).alias("row")
                yield rows.select(number, *fields)
                done += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise TableRefused(f"{table.path}: cannot be read after row {done:,}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:120]
