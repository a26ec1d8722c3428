"""A table of photos, read row by row: CSV, TSV, JSON lines or Parquet, never more than a piece of it in memory.

All values are text as it stands in the file. A reader that guesses types turns long ids into floats, and an id once
damaged cannot be mended.
"""

import codecs
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tasks.ingest import json_lines, parquet_rows
from tasks.ingest.cells import Values, text_or_none
from tasks.ingest.layouts import Layout
from tasks.ingest.lines import LONGEST_LINE, split_rows
from tasks.ingest.refusal import Refusal, TableRefused

FORMATS = {
    **{".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".txt": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"},
    **{".parquet": "parquet", ".pq": "parquet"},
}
_MARKS = {  # that of UTF-32 begins like that of UTF-16
    **{codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32"},
    **{codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"},
}

_FOR_EXCEL = re.compile(r"\s*\"?sep=.\"?\s*", re.IGNORECASE)


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
        try:
            if self.format == "parquet":
                yield from parquet_rows.rows_of(self.path, wanted)
            elif self.format == "jsonl":
                yield from json_lines.rows_of(self.path, self.encoding, wanted)
            else:
                yield from _csv_rows(self, wanted, one_line, numbers)
        except UnicodeError as error:
            raise _wrong_encoding(self, error) from error


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
            return _with_names(Table(path, kind, ()), parquet_rows.names_of(path))
        with path.open("rb") as file:
            start = file.read(65_536)
    except OSError as error:
        raise TableRefused(f"{path}: cannot be read: {error.strerror or error}") from error
    encoding = encoding or next((name for mark, name in _MARKS.items() if start.startswith(mark)), "utf-8")
    if b"\0" in start and not encoding.replace("-", "").casefold().startswith(("utf16", "utf32")):
        raise TableRefused(f"{path}: holds zero bytes, so it is no text; save it as UTF-8, or name its --encoding")
    table = Table(path, kind, (), encoding, "\t" if kind == "tsv" else ",")
    try:
        if kind == "jsonl":
            return _with_names(table, json_lines.names_of(path, encoding))
        return _open_csv(table, layout)
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
    if _FOR_EXCEL.fullmatch(first):
        raise TableRefused(
            f"{table.path}: its first line, {first.strip()!r}, is for Excel alone; delete it, so that the column names "
            "come first"
        )
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
    table = _with_names(replace(table, separator=separator, notes=tuple(notes)), names)
    if sum(_is_number(name) for name in names) >= 2:
        raise TableRefused(
            f"{table.path}: the first line looks like data ({', '.join(names)[:80]}); put the column names above it, "
            "such as id,path,lat,lon"
        )
    return table


def _with_names(table: Table, names: Sequence[str]) -> Table:
    # Unnamed columns (an index written by a spreadsheet) are harmless as long as none is asked for.
    twice = [name for name, times in Counter(n.casefold() for n in names if n).items() if times > 1]
    if twice:
        raise TableRefused(f"{table.path}: column '{twice[0]}' stands twice in the header; rename or delete one")
    return replace(table, columns=tuple(names))


def _csv_rows(
    table: Table, wanted: Sequence[str], one_line: Sequence[str], numbers: Sequence[str]
) -> Iterator[tuple[int, Values | Refusal]]:
    width = len(table.columns)
    places, single, counted = (
        [table.columns.index(name) for name in names] for names in (wanted, one_line, numbers)
    )  # fmt: skip
    rows = split_rows(table.path, table.encoding, table.separator, not table.headless, single, counted)
    if not table.headless:
        next(rows, None)
    for number, fields in rows:
        if isinstance(fields, Refusal):
            yield number, fields
        elif len(fields) != width:
            shown = table.separator.join(fields)
            said = f"{len(fields)} fields, the header has {width}"
            if len(fields) == width + 1 and not fields[-1].strip():
                said += f", because of a {table.separator!r} too many at the end"
            yield number, Refusal("ragged_row", said, given=shown)
        else:
            yield number, tuple(text_or_none(fields[place]) for place in places)


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
