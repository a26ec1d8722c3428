"""CSV and TSV line by line: a quote that is never closed must cost its own row and no other.

A reader of CSV takes whatever follows an open quote for one field, over line breaks, until the next quote. Where a row
that spans several lines makes no sense, only its first line is given up, and reading goes on with the second.
"""

import csv
import re
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from tasks.ingest.refusal import Refusal, TableRefused

LONGEST_LINE = 1_000_000  # characters; more is no table
_NUMBER = re.compile(r"\s*[-+]?\d+(?:[.,]\d*)?\s*")
_BREAK = re.compile(r"[\r\n]")

Row = tuple[int, list[str] | Refusal]


class Lines:
    """A file's lines for `csv.reader`, some of which can be given back to be read again."""

    def __init__(self, path: Path, encoding: str) -> None:
        self._path = path
        self._file = path.open(encoding=encoding, newline="")
        self._back: deque[str] = deque()
        self._before = 0  # lines up to the last mark
        self.taken: list[str] = []  # since then

    def __iter__(self) -> Iterator[str]:
        back, take, read = self._back, self.taken.append, self._file.readline
        while line := (back.popleft() if back else read(LONGEST_LINE)):
            take(line)
            if len(line) >= LONGEST_LINE:
                number = self._before + len(self.taken)
                raise TableRefused(f"{self._path}: line {number} is longer than {LONGEST_LINE:,} characters")
            yield line

    def close(self) -> None:
        self._file.close()

    def mark(self) -> int:
        """Forget what was taken so far; returns the number of the next line."""
        self._before += len(self.taken)
        self.taken.clear()
        return self._before + 1

    def give_back(self) -> None:
        """All that was taken since the mark, but for the first line."""
        self._back.extendleft(reversed(self.taken[1:]))
        del self.taken[1:]


def split_rows(
    path: Path, encoding: str, separator: str, quoted: bool = True, one_line: Sequence[int] = (),
    numbers: Sequence[int] = (),
) -> Iterator[Row]:  # fmt: skip
    """The fields of every row that is not blank, the header among them, with the number of its first line.

    `one_line` are columns whose values never hold a line break, `numbers` those that are numbers in every row: by them
    a quote that ran over other rows is told from a long text.
    """
    lines = Lines(path, encoding)
    try:
        yield from _rows(lines, separator, quoted, one_line, numbers)
    finally:
        lines.close()


def _rows(
    lines: Lines, separator: str, quoted: bool, one_line: Sequence[int], numbers: Sequence[int]
) -> Iterator[Row]:  # fmt: skip
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    width, refused = 0, True
    while True:
        if refused:  # a reader that has seen the end of the file looks no further, though lines were given back
            reader = csv.reader(lines, delimiter=separator, quoting=quoting, strict=True)
            refused = False
        number, why = lines.mark(), None
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            fields, why = [], str(error)
        if why is None and len(lines.taken) > 1:
            why = _ran_on(fields, lines.taken, separator, width, one_line, numbers)
        if why is not None:
            yield number, _refused(why, lines, separator)
            refused = True
        elif len(fields) > 1 or (fields and fields[0].strip()):  # a blank line is no row
            width = width or len(fields)
            yield number, fields


def _refused(why: str, lines: Lines, separator: str) -> Refusal:
    several, first = len(lines.taken) > 1, lines.taken[0].rstrip("\r\n")
    lines.give_back()
    said = f"a quote that is not closed ({why})" if several else f"not readable as fields by {separator!r}: {why}"
    return Refusal("unreadable_row", said, given=first)


def _ran_on(
    fields: Sequence[str], taken: Sequence[str], separator: str, width: int, one_line: Sequence[int],
    numbers: Sequence[int],
) -> str | None:  # fmt: skip
    """Why a row of several lines cannot be one row; None if it can."""
    if width and len(fields) != width:
        return f"with the lines after it {len(fields)} fields, the header has {width}"
    if width == 0:
        # Of the header nothing is known but that it holds names.
        return "the next lines hold numbers" if any(_counted(line, separator) >= 2 for line in taken[1:]) else None
    if any(_BREAK.search(fields[column].strip()) for column in one_line):
        return "it runs on over the next lines"
    if numbers and any(_is_row(line, separator, width, numbers) for line in taken[1:]):
        return "the lines after it are rows themselves"
    return None


def _is_row(line: str, separator: str, width: int, numbers: Sequence[int]) -> bool:
    fields = _fields(line, separator)
    return len(fields) == width and all(_NUMBER.fullmatch(fields[column]) for column in numbers)


def _counted(line: str, separator: str) -> int:
    return sum(_NUMBER.fullmatch(field) is not None for field in _fields(line, separator))


def _fields(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=separator))
    except (csv.Error, StopIteration):
        return []
