"""JSON lines: one object a line, which names only the fields it has."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tasks.ingest.cells import Values, is_text, text_or_none
from tasks.ingest.lines import LONGEST_LINE
from tasks.ingest.refusal import Refusal, TableRefused

MOST_NAMES = 10_000  # different fields; more is no table


class _Written(str):
    """A JSON number as it was written."""


def names_of(path: Path, encoding: str) -> list[str]:
    """The fields of all rows, in the order they come up; TableRefused when it is no table.

    An object leaves out what it has no value for: a licence that only the last row names counts as much as one that
    all of them name, so the whole file is read.
    """
    names: dict[str, None] = {}
    for number, line in _lines(path, encoding):
        row = _object(line)
        if isinstance(row, dict):
            names.update(dict.fromkeys(row))
        elif not names:
            raise TableRefused(f"{path}: line {number} is {row}; write one JSON object a line")
        if len(names) > MOST_NAMES:
            raise TableRefused(
                f"{path}: more than {MOST_NAMES:,} different fields up to line {number}; name the fields alike in all "
                "rows"
            )
    if not names:
        raise TableRefused(f"{path}: the file holds no rows")
    return list(names)


def rows_of(path: Path, encoding: str, wanted: Sequence[str]) -> Iterator[tuple[int, Values | Refusal]]:
    """Every row with the number of its line."""
    for number, line in _lines(path, encoding):
        row = _object(line)
        yield number, Refusal("unreadable_row", row, given=line) if isinstance(row, str) else _values(row, wanted)


def _values(row: dict[str, Any], wanted: Sequence[str]) -> Values | Refusal:
    odd = next((name for name in wanted if isinstance(row.get(name), dict | list | bool)), None)
    if odd is not None:
        return Refusal("unreadable_row", "neither text nor a number", odd, json.dumps(row[odd], default=str))
    values = tuple(None if (value := row.get(name)) is None else text_or_none(str(value)) for name in wanted)
    halved = next((name for name, value in zip(wanted, values, strict=True) if value and not is_text(value)), None)
    if halved is not None:
        return Refusal("unreadable_row", "holds half of a character (\\ud800)", halved)
    return values


def _lines(path: Path, encoding: str) -> Iterator[tuple[int, str]]:
    with path.open(encoding=encoding) as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            if len(line) == LONGEST_LINE:
                raise TableRefused(f"{path}: line {number} is longer than {LONGEST_LINE:,} characters")
            if line.strip():
                yield number, line


def _object(line: str) -> dict[str, Any] | str:
    try:
        row = json.loads(
            line, parse_float=_Written, parse_int=_Written, parse_constant=_Written, object_pairs_hook=_unique
        )
    except (ValueError, RecursionError) as error:
        return f"not JSON ({str(error)[:60]})"
    return row if isinstance(row, dict) else "no object with fields"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"field {twice!r} stands twice")  # the last one would win, unseen
    return row
