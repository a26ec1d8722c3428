"""A table of photos in batches of rows: CSV, TSV, JSON lines or Parquet, never more than a batch in memory.

All values are text as it stands in the file. A reader that guesses types turns long ids into floats, and an id once
damaged cannot be mended.
"""

import codecs
import csv
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.settings.ingest import IngestSettings
from tasks.ingest.embedded import check_groups, picture_column, read_schema, shards, with_places
from tasks.ingest.folder import COLUMNS, folder_rows
from tasks.ingest.layouts import Layout
from tasks.ingest.refusal import REFUSED, TableRefused

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


@dataclass(frozen=True)
class Table:
    """An opened table: what it is and which columns it has. CSV's rows are numbered as a spreadsheet's."""

    path: Path
    format: str
    columns: tuple[str, ...]
    files: tuple[Path, ...]  # the file itself, or the Parquet files of a folder
    encoding: str = "utf-8-sig"
    separator: str = ","
    header_line: int = 0  # of a CSV file; 0: it has no header
    notes: tuple[str, ...] = ()
    pictures: str | None = None  # a column of Parquet that holds them
    photos: pl.DataFrame = field(default_factory=pl.DataFrame, compare=False)  # of a folder: its rows, read once

    @property
    def root(self) -> Path:
        """The folder that its files and pictures are relative to, unless another is named."""
        return self.path.absolute() if self.path.is_dir() else self.path.absolute().parent

    @property
    def headless(self) -> bool:
        """Whether its columns are known by their number."""
        return self.format == "tsv" and not self.header_line

    def batches(self, names: Mapping[str, str]) -> Iterator[pl.DataFrame]:
        """Every row in order: its number `row`, and for each field of `names` (field -> column) its text or null.

        `refused` says why a row cannot be read; it is null for all others.
        """
        readers = {"parquet": _parquet_batches, "folder": _folder_batches, "jsonl": _json_batches}
        text = pl.col(list(names)).str.strip_chars()
        cells = pl.when(~text.str.to_lowercase().is_in(EMPTY)).then(text)
        try:
            for rows in readers.get(self.format, _csv_batches)(self, names):
                yield rows.with_columns(cells, pl.col("row").cast(pl.Int64))
        except (UnicodeError, pl.exceptions.PolarsError) as error:
            raise _not_text(self, error) from error


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


def _folder_batches(table: Table, names: Mapping[str, str]) -> Iterator[pl.DataFrame]:
    columns = [pl.col(column).alias(name) for name, column in names.items()]
    for rows in table.photos.iter_slices(BATCH):
        yield rows.select("row", *columns, "refused")


def open_table(path: Path, encoding: str | None = None, layout: Layout | None = None) -> Table:
    """The table at a path with its columns; TableRefused for any other file. `layout` may know columns by number."""
    files = shards(path) if path.is_dir() else [path]
    if not files:
        photos, notes = folder_rows(path)
        return Table(path, "folder", COLUMNS, (path,), notes=notes, photos=photos)
    kind = FORMATS.get(files[0].suffix.casefold())
    if kind is None:
        raise TableRefused(
            f"{path}: the name must end in {', '.join(FORMATS)}, to say what the file is; or give a folder of photos"
        )
    table = Table(path, kind, (), tuple(files), encoding or "utf-8-sig", "\t" if kind == "tsv" else ",")
    try:
        if kind == "parquet":
            return _open_parquet(table)
        return _with_columns(table, _json_columns(table)) if kind == "jsonl" else _open_csv(table, layout)
    except UnicodeError as error:
        raise _not_text(table, error) from error
    except OSError as error:
        raise TableRefused(f"{path}: cannot be read: {error.strerror or error}") from error


def _with_columns(table: Table, names: Sequence[str]) -> Table:
    # Unnamed columns (an index written by a spreadsheet) are harmless as long as none is requested.
    twice = [name for name, times in Counter(n.casefold() for n in names if n).items() if times > 1]
    if twice:
        raise TableRefused(f"{table.path}: column '{twice[0]}' stands twice in the header; rename or delete one")
    return replace(table, columns=tuple(names))


def _not_text(table: Table, error: Exception) -> TableRefused:
    encoding = table.encoding.upper().removesuffix("-SIG")
    return TableRefused(
        f"{table.path}: cannot be read as {encoding} text: {_first_line(error)}; close a quote that is left open, save "
        "the file as UTF-8, or name its --encoding, such as --encoding cp1252 for files of older Windows"
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
    header = next(csv.reader([first], delimiter=table.separator))
    return replace(_with_columns(table, [" ".join(name.split()) for name in header]), header_line=number)


def _csv_batches(table: Table, names: Mapping[str, str]) -> Iterator[pl.DataFrame]:
    """Polars reads it as a stream. Fields that a row lacks are empty.

    A row with more fields than the header, or a field of several lines, is refused: a quote is missing in it. So is
    one with as much as a row in a field that nobody reads: it may be one.
    """
    width = len(table.columns)
    columns = dict.fromkeys(map(str, range(width + 1)), pl.String)  # by number, as names may be empty; and one more
    fields = [pl.col(str(table.columns.index(column))).alias(name) for name, column in names.items()]
    unread = [pl.col(str(at)) for at, column in enumerate(table.columns) if column not in names.values()]
    joined = [pl.when(_has_lines(text)).then(text) for text in fields]
    joined += [pl.when(_has_lines(text) & _holds_a_row(text, table)).then(text) for text in unread]
    given = pl.coalesce(str(width), *joined)
    problem = pl.lit(f"more than the header's {width} fields, or a field of several lines")
    ragged = pl.struct(reason=pl.lit("ragged_row"), problem=problem, column=pl.lit(None, pl.String), given=given)
    refused = pl.when(given.is_not_null()).then(ragged).alias("refused")
    in_utf8 = codecs.lookup(table.encoding).name.startswith("utf-8")  # the one encoding that Polars reads
    rows = pl.scan_csv(
        table.path if in_utf8 else table.path.read_bytes().decode(table.encoding).encode(),
        has_header=False,
        skip_lines=table.header_line,
        schema=columns,
        missing_columns="insert",
        truncate_ragged_lines=True,
        separator=table.separator,
        quote_char=None if table.headless else '"',
        row_index_name="row",
        row_index_offset=table.header_line + 1,
        glob=False,
    ).filter(pl.any_horizontal(pl.col(*columns).is_not_null()))
    yield from rows.select("row", *fields, refused).collect_batches(chunk_size=BATCH, maintain_order=True)


def _has_lines(text: pl.Expr) -> pl.Expr:
    return text.str.contains("\n", literal=True)


def _holds_a_row(text: pl.Expr, table: Table) -> pl.Expr:
    return text.str.count_matches(table.separator, literal=True) >= len(table.columns) - 1


# JSON lines --------------------------------------------------------------------------------------------------


def _json_columns(table: Table) -> list[str]:
    """The fields of all rows, in the order they come up.

    An object leaves out what it has no value for: a licence that only the last row names counts as much as one that
    all of them name, so the whole file is read.
    """
    names = dict.fromkeys(name for _, row in _json_rows(table) for name in row)
    if not names:
        raise TableRefused(f"{table.path}: the file holds no rows")
    return list(names)


def _json_rows(table: Table) -> Iterator[tuple[int, dict[str, object]]]:
    with table.path.open(encoding=table.encoding) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:  # numbers stay as they are written
                row = json.loads(line, parse_float=str, parse_int=str, parse_constant=str)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise TableRefused(
                    f"{table.path}: line {number} is not a JSON object: {line[:60]!r}; write one JSON object a line"
                )
            yield number, row


def _json_batches(table: Table, names: Mapping[str, str]) -> Iterator[pl.DataFrame]:
    schema: dict[str, Any] = {"row": pl.Int64, **dict.fromkeys(names, pl.String), "refused": REFUSED}
    rows = _json_rows(table)
    while batch := list(itertools.islice(rows, BATCH)):
        texts = [(number, *(_json_text(row.get(name)) for name in names.values()), None) for number, row in batch]
        yield pl.DataFrame(texts, schema, orient="row")


def _json_text(value: object) -> str | None:
    """A value as text; half of a character (\\ud800), which cannot be stored, becomes a question mark."""
    text = value if isinstance(value, str | None) else json.dumps(value)
    return text and text.encode(errors="replace").decode()


# Parquet -----------------------------------------------------------------------------------------------------


def _open_parquet(table: Table) -> Table:
    schemas = [read_schema(file) for file in table.files]
    for file, schema in zip(table.files, schemas, strict=True):
        if schema.names != schemas[0].names:
            raise TableRefused(f"{file}: has other columns than {table.files[0]}; give one of them at a time")
    return replace(_with_columns(table, schemas[0].names), pictures=picture_column(schemas[0]))


def check_parquet(table: Table, names: Mapping[str, str], settings: IngestSettings) -> None:
    """TableRefused for more rows than are allowed, and for a column that cannot hold what the field of its name should.

    Other tables are as large as they look; a megabyte of Parquet may hold a hundred million rows.
    """
    path, metadata = table.path, [pq.read_metadata(file) for file in table.files]
    if (rows := sum(of_file.num_rows for of_file in metadata)) > settings.max_rows:
        raise TableRefused(
            f"{path}: holds {rows:,} rows, more than ingest.max_rows ({settings.max_rows:,}), and each "
            f"may take a kilobyte of memory: split the file, or give --set ingest.max_rows={rows}"
        )
    schema = metadata[0].schema.to_arrow_schema()
    for name, column in names.items():
        if table.pictures and column in (table.pictures, f"{table.pictures}.path"):
            check_groups(path, metadata, table.pictures)
            continue
        kind = schema.field(column).type
        if name == "id" and settings.check_ids and pa.types.is_floating(kind):
            raise TableRefused(
                f"{path}: column {column} stores ids as {kind}, which cannot hold long ids; export it again with "
                f"text ids (pandas: dtype={{'{column}': str}})"
            )
        if "binary" in str(kind) or (pa.types.is_nested(kind) and not pa.types.is_dictionary(kind)):
            raise TableRefused(f"{path}: column {column} holds {str(kind)[:60]}; store it as text or a number")


def _parquet_batches(table: Table, names: Mapping[str, str]) -> Iterator[pl.DataFrame]:
    """PyArrow reads it batch by batch, and its casts give every type the text that it is written with."""
    done, pictures = 0, table.pictures if table.pictures in names.values() else None
    columns = list(dict.fromkeys(column for column in names.values() if column in table.columns and column != pictures))
    texts = pa.schema([(column, pa.large_string()) for column in columns])
    fields = [pl.col(column).alias(name) for name, column in names.items()]
    read = columns if pictures is None else [*columns, f"{pictures}.path"]
    try:
        for file in table.files:
            before, place = done, file.absolute().relative_to(table.root).as_posix()
            with pq.ParquetFile(file) as opened:
                for batch in opened.iter_batches(BATCH, columns=read):
                    batch.validate(full=True)
                    rows = pl.DataFrame(batch.select(columns).cast(texts))
                    if pictures is not None:
                        own = pl.Series(batch.column(pictures).field("path"), dtype=pl.String)
                        rows = with_places(rows, pictures, own, place, done - before)
                    number = pl.int_range(done + 1, done + batch.num_rows + 1).alias("row")
                    yield rows.select(number, *fields, refused=pl.lit(None, REFUSED))
                    done += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise TableRefused(f"{table.path}: cannot be read after row {done:,}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:120]
