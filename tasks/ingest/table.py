"""A table of photos in batches of rows: CSV, TSV, JSON lines or Parquet, never more than a batch in memory.

All values are text as it stands in the file. A reader that guesses types turns long ids into floats, and an id once
damaged cannot be mended. Polars parses CSV and PyArrow decodes Parquet. Python looks at the raw lines first, because
neither reader says which line is bad: a quote that is never closed must cost its own line and no other.
"""

import codecs
import csv
import itertools
import json
import math
import re
from collections import Counter, deque
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
LONGEST_LINE = 1_000_000  # characters; a longer line is not a row of a table
MOST_NAMES = 10_000  # different fields of JSON lines
LARGEST_ARRAY = 256_000_000  # bytes of one JSON array of rows, which is read as a whole
FORMATS = {
    **{".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".txt": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"},
    ".json": "jsonl",
    **{".parquet": "parquet", ".pq": "parquet"},
}
# What pandas, spreadsheets and databases write for an empty cell. NA is not among them: it is Namibia.
EMPTY = ("", "nan", "null", "none", "n/a", "#n/a", "<na>", "nat", "\\n")
REFUSAL = ("reason", "problem", "column", "given")  # columns of a row that cannot be read
_BYTE_ORDER_MARKS = {  # that of UTF-32 begins like that of UTF-16
    **{codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32"},
    **{codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"},
}
_EXCEL_SEPARATOR = re.compile(r"\s*\"?sep=.\"?\s*", re.IGNORECASE)
_NUMBER = re.compile(r"\s*[-+]?\d+(?:[.,]\d*)?\s*")
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # JSON may hold one half of a character that needs two
_LINE_BREAK = re.compile(r"[\r\n]")
# Fields that never hold a line break, and those that are numbers: by them an open quote is told from a long text.
_ONE_LINE, _NUMBERS = ("id", "path", "url", "lat", "lon"), ("lat", "lon")
# Bytes are left out: as text they would read b'ab01'.
_CELLS = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_integer),
    *(pa.types.is_floating, pa.types.is_decimal, pa.types.is_temporal, pa.types.is_boolean, pa.types.is_null),
)


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


def _frame(good: pl.DataFrame, bad: Bad, fields: list[str]) -> pl.DataFrame:
    text = pl.col(fields).str.strip_chars()
    good = good.select("row", pl.when(~text.str.to_lowercase().is_in(EMPTY)).then(text))
    rows = [(number, one.reason, one.problem, one.column, one.given) for number, one in bad]
    schema = {"row": pl.Int64, **dict.fromkeys(REFUSAL, pl.String)}
    return pl.concat([good, pl.DataFrame(rows, schema, orient="row")], how="diagonal").sort("row")


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
    if not path.is_file():
        raise TableRefused(f"{path}: there is no such file" if not path.exists() else f"{path}: is not a file")
    try:
        if path.stat().st_size == 0:
            raise TableRefused(f"{path}: the file is empty")
        if kind == "parquet":
            return _with_columns(Table(path, kind, ()), _parquet_columns(path))
        with path.open("rb") as file:
            start = file.read(65_536)
    except OSError as error:
        raise TableRefused(f"{path}: cannot be read: {error.strerror or error}") from error
    marked = next((name for mark, name in _BYTE_ORDER_MARKS.items() if start.startswith(mark)), "utf-8")
    encoding = encoding or marked
    if b"\0" in start and not encoding.replace("-", "").casefold().startswith(("utf16", "utf32")):
        raise TableRefused(f"{path}: holds zero bytes, so it is not text; save it as UTF-8, or name its --encoding")
    table = Table(path, kind, (), encoding, "\t" if kind == "tsv" else ",")
    try:
        return _with_columns(table, _json_columns(table)) if kind == "jsonl" else _open_csv(table, layout)
    except UnicodeError as error:
        raise _wrong_encoding(table, error) from error


def _with_columns(table: Table, names: Sequence[str]) -> Table:
    # Unnamed columns (an index written by a spreadsheet) are harmless as long as none is asked for.
    twice = [name for name, times in Counter(n.casefold() for n in names if n).items() if times > 1]
    if twice:
        raise TableRefused(f"{table.path}: column '{twice[0]}' stands twice in the header; rename or delete one")
    return replace(table, columns=tuple(names))


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


def _folder_batches(table: Table, names: Mapping[str, str], size: int) -> Iterator[Batch]:
    rows, bad = table.found or folder_rows(table.path)[:2]
    columns = [pl.col(column).alias(name) for name, column in names.items()]
    last = max([*rows["row"], *(number for number, _ in bad)], default=0)
    for first in range(1, last + 1, size):
        ones = range(first, first + size)
        yield (
            rows.filter(pl.col("row").is_between(first, first + size - 1)).select("row", *columns),
            [(number, one) for number, one in bad if number in ones],
        )


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
    if _EXCEL_SEPARATOR.fullmatch(first):
        raise TableRefused(
            f"{table.path}: its first line, {first.strip()!r}, is for Excel alone; delete it, so that the column names "
            "come first"
        )
    if table.separator not in first and (found := max("\t;,|", key=first.count)) in first:
        note = f"fields are separated by {'tabs' if found == chr(9) else repr(found)}"
        table = replace(table, separator=found, notes=(note,))
    fields = first.rstrip("\r\n").split("\t")
    if (
        layout is not None
        and table.separator == "\t"
        and len(fields) in layout.headless
        and any(_is_number(name) for name in fields)
    ):
        return replace(table, format="tsv", columns=layout.headless[len(fields)], headless=True)
    _, header = next(_csv_records(table), (1, Refusal("unreadable_row", "it is blank")))
    if isinstance(header, Refusal):
        raise TableRefused(
            f"{table.path}: the first line must hold the column names, and is unreadable: {header.problem}"
        )
    names = [" ".join(name.split()) for name in _split(header, table.separator)]
    table = _with_columns(table, names)
    if sum(_is_number(name) for name in names) >= 2:
        raise TableRefused(
            f"{table.path}: the first line looks like data ({', '.join(names)[:80]}); put the column names above it, "
            "such as id,path,lat,lon"
        )
    return table


def _csv_batches(table: Table, names: Mapping[str, str], size: int) -> Iterator[Batch]:
    places = {name: table.columns.index(column) for name, column in names.items()}
    records = _csv_records(table, places)
    if not table.headless:
        next(records, None)
    header = table.separator.join(map(str, range(len(table.columns))))
    while batch := list(itertools.islice(records, size)):
        good = [(number, line) for number, line in batch if isinstance(line, str)]
        rows = pl.read_csv(
            "\n".join([header, *(line for _, line in good)]).encode("utf-8", "replace"),
            columns=[str(place) for place in dict.fromkeys(places.values())],
            separator=table.separator,
            quote_char=None if table.headless else '"',
            infer_schema=False,
        )
        numbers = pl.Series("row", [number for number, _ in good], dtype=pl.Int64)
        columns = [pl.col(str(place)).alias(name) for name, place in places.items()]
        yield rows.select(numbers, *columns), [(number, one) for number, one in batch if isinstance(one, Refusal)]


def _csv_records(table: Table, places: Mapping[str, int] | None = None) -> Iterator[tuple[int, str | Refusal]]:
    """Every row that is not blank, the header among them, as CSV, with the number of its first line.

    A reader of CSV takes whatever follows an open quote for one field, over line breaks, until the next quote. Where a
    row that spans several lines makes no sense, only its first line is given up, and reading goes on with the second.
    `places` (field -> number of its column) are None for the header.
    """
    width, separator = len(table.columns), table.separator
    number, taken, put_back = 1, list[str](), deque[str]()
    with table.path.open(encoding=table.encoding, newline="") as file:

        def next_line() -> str:
            line = put_back.popleft() if put_back else file.readline(LONGEST_LINE)
            if len(line) >= LONGEST_LINE:
                at = number + len(taken)
                raise TableRefused(f"{table.path}: line {at} is longer than {LONGEST_LINE:,} characters")
            if line:
                taken.append(line)
            return line

        while line := next_line():
            text = line.rstrip("\r\n")
            if '"' in text and not table.headless:
                try:
                    lines = itertools.chain([line], iter(next_line, ""))
                    fields = next(csv.reader(lines, delimiter=separator, strict=True))
                    why = _why_not_one_row(fields, taken, separator, width, places) if len(taken) > 1 else None
                except csv.Error as error:
                    fields, why = [], str(error)
                if why is not None:
                    reader = f"not readable as fields by {separator!r}: {why}"
                    said = f"a quote that is not closed ({why})" if len(taken) > 1 else reader
                    put_back.extendleft(reversed(taken[1:]))
                    del taken[1:]
                    yield number, Refusal("unreadable_row", said, given=text)
                else:
                    # Quoted throughout: readers of CSV differ in what they make of a quote within a field.
                    quoted = separator.join('"' + one.replace('"', '""') + '"' for one in fields)
                    yield number, _ragged(fields, table) or quoted
            elif separator in text or text.strip():
                ragged = width and text.count(separator) != width - 1
                yield number, (_ragged(text.split(separator), table) if ragged else None) or text
            number += len(taken)
            taken.clear()


def _ragged(fields: Sequence[str], table: Table) -> Refusal | None:
    width = len(table.columns)
    if not width or len(fields) == width:
        return None
    said = f"{len(fields)} fields, the header has {width}"
    if len(fields) == width + 1 and not fields[-1].strip():
        said += f", because of a {table.separator!r} too many at the end"
    return Refusal("ragged_row", said, given=table.separator.join(fields))


def _why_not_one_row(
    fields: Sequence[str], lines: Sequence[str], separator: str, width: int, places: Mapping[str, int] | None
) -> str | None:
    """Why several lines cannot be one row; None if they can."""
    if places is None:  # of the header nothing is known but that it holds names
        counted = [sum(_NUMBER.fullmatch(one) is not None for one in _split(line, separator)) for line in lines[1:]]
        return "the next lines hold numbers" if any(count >= 2 for count in counted) else None
    if len(fields) != width:
        return f"with the lines after it {len(fields)} fields, the header has {width}"
    if any(_LINE_BREAK.search(fields[places[name]].strip()) for name in _ONE_LINE if name in places):
        return "it runs on over the next lines"
    numbers = [places[name] for name in _NUMBERS if name in places]
    rows = [one for one in (_split(line, separator) for line in lines[1:]) if len(one) == width]
    if numbers and any(all(_NUMBER.fullmatch(row[place]) for place in numbers) for row in rows):
        return "the lines after it are rows themselves"
    return None


def _split(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return []


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


# JSON lines --------------------------------------------------------------------------------------------------


class _Written(str):
    """A JSON number as it was written. Polars' reader of JSON would parse it, and take the last of two equal names."""


def _json_columns(table: Table) -> list[str]:
    """The fields of all rows, in the order they come up.

    An object leaves out what it has no value for: a licence that only the last row names counts as much as one that
    all of them name, so the whole file is read.
    """
    names: dict[str, None] = {}
    for number, line in _json_lines(table):
        row = _json_object(line)
        if isinstance(row, dict):
            names.update(dict.fromkeys(row))
        elif not names:
            raise TableRefused(f"{table.path}: line {number} is {row}; write one JSON object a line")
        if len(names) > MOST_NAMES:
            raise TableRefused(
                f"{table.path}: more than {MOST_NAMES:,} different fields up to line {number}; name the fields alike "
                "in all rows"
            )
    if not names:
        raise TableRefused(f"{table.path}: the file holds no rows")
    return list(names)


def _json_batches(table: Table, names: Mapping[str, str], size: int) -> Iterator[Batch]:
    lines = _json_lines(table)
    schema = {"row": pl.Int64, **dict.fromkeys(names, pl.String)}
    while batch := list(itertools.islice(lines, size)):
        read = [(number, _json_values(line, names.values())) for number, line in batch]
        rows = [(number, *values) for number, values in read if not isinstance(values, Refusal)]
        bad = [(number, values) for number, values in read if isinstance(values, Refusal)]
        yield pl.DataFrame(rows, schema, orient="row"), bad


def _json_values(line: str, wanted: Iterable[str]) -> list[str | None] | Refusal:
    row = _json_object(line)
    if isinstance(row, str):
        return Refusal("unreadable_row", row, given=line)
    values: list[str | None] = []
    for name in wanted:
        value = row.get(name)
        if isinstance(value, dict | list | bool):
            return Refusal("unreadable_row", "neither text nor a number", name, json.dumps(value, default=str))
        if value is not None and _HALF_CHARACTER.search(value):
            return Refusal("unreadable_row", "holds half of a character (\\ud800)", name)
        values.append(None if value is None else str(value))
    return values


def _json_lines(table: Table) -> Iterator[tuple[int, str]]:
    """Each row's number and JSON: of one object a line, or of one array of objects."""
    with table.path.open(encoding=table.encoding) as file:
        if file.read(1_000).lstrip().startswith("["):
            yield from _json_array(table)
            return
        file.seek(0)
        for number in itertools.count(1):
            line = file.readline(LONGEST_LINE)
            if not line:
                return
            if len(line) == LONGEST_LINE:
                raise TableRefused(f"{table.path}: line {number} is longer than {LONGEST_LINE:,} characters")
            if line.strip():
                yield number, line


def _json_array(table: Table) -> Iterator[tuple[int, str]]:
    if table.path.stat().st_size > LARGEST_ARRAY:
        raise TableRefused(
            f"{table.path}: a JSON array of more than {LARGEST_ARRAY / 1e6:.0f} MB; write one JSON object a line"
        )
    try:
        rows = json.loads(table.path.read_text(table.encoding), parse_float=_Written, parse_int=_Written)
    except (json.JSONDecodeError, RecursionError) as error:
        raise TableRefused(f"{table.path}: is not JSON: {error}") from error
    for number, row in enumerate(rows, 1):
        yield number, json.dumps(row)


def _json_object(line: str) -> dict[str, Any] | str:
    try:
        row = json.loads(
            line, parse_float=_Written, parse_int=_Written, parse_constant=_Written, object_pairs_hook=_unique_names
        )
    except (ValueError, RecursionError) as error:
        return f"not JSON ({str(error)[:60]})"
    return row if isinstance(row, dict) else "not an object with fields"


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"field {twice!r} stands twice")  # the last one would win, unseen
    return row


# Parquet -----------------------------------------------------------------------------------------------------


def _parquet_columns(path: Path) -> list[str]:
    try:
        with pq.ParquetFile(path) as file:
            names, rows = file.schema_arrow.names, file.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        said = str(error).splitlines()[0][:120]
        raise TableRefused(f"{path}: is not a readable Parquet file: {said}") from error
    if rows == 0:
        raise TableRefused(f"{path}: the file holds no rows")
    return list(names)


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
        values = kind.value_type if pa.types.is_dictionary(kind) else kind
        if name == "id" and settings.check_ids and pa.types.is_floating(values):
            raise TableRefused(
                f"{path}: column {column} stores ids as {kind}, which cannot hold long ids; export it again with "
                f"text ids (pandas: dtype={{'{column}': str}})"
            )
        if not any(is_one(values) for is_one in _CELLS):
            raise TableRefused(f"{path}: column {column} holds {str(kind)[:60]}; store it as text or a number")


def _parquet_batches(table: Table, names: Mapping[str, str], size: int) -> Iterator[Batch]:
    """PyArrow reads it: Polars refuses a whole file for one text that is not UTF-8."""
    done = 0
    try:
        with pq.ParquetFile(table.path) as file:
            for batch in file.iter_batches(batch_size=size, columns=list(dict.fromkeys(names.values()))):
                columns, bad = {}, dict[int, Refusal]()
                for name, column in names.items():
                    text = pc.cast(batch.column(column), pa.large_string())
                    columns[name], broken = _valid_text(text)
                    bad |= dict.fromkeys(broken, Refusal("unreadable_row", "holds bytes that are not UTF-8", column))
                rows = pl.DataFrame({"row": range(done + 1, done + batch.num_rows + 1), **columns})
                done += batch.num_rows
                good = rows.filter(~pl.int_range(pl.len()).is_in(list(bad))) if bad else rows
                yield good, [(rows["row"][at], why) for at, why in sorted(bad.items())]
    except (pa.ArrowException, OSError) as error:
        said = str(error).splitlines()[0][:120]
        raise TableRefused(f"{table.path}: breaks off after row {done}: {said}") from error


def _valid_text(column: pa.Array) -> tuple[pl.Series, list[int]]:
    """The column as text, and the places whose bytes are not UTF-8."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raw = pc.cast(column, pa.large_binary()).to_pylist()
        texts = [None if one is None else one.decode("utf-8", "replace") for one in raw]
        pairs = zip(raw, texts, strict=True)
        return pl.Series(texts, dtype=pl.String), [
            at for at, (one, text) in enumerate(pairs) if text is not None and text.encode() != one
        ]
    return pl.Series(column, dtype=pl.String), []
