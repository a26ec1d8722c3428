"""Rows of a table as `geofix show` asks for them: a wrong name is answered with the right ones."""

import difflib
from collections.abc import Iterable

import polars as pl

from flows.command import UsageError
from schemas.tables import TABLES
from tasks.lake import Lake


def check_table(name: str) -> None:
    """Refuse a table that is none."""
    if name not in TABLES:
        raise UsageError(f"there is no table '{name}'; {_close(name, TABLES)}the tables are {', '.join(TABLES)}")


def read_rows(lake: Lake, name: str, version: int | None, where: list[str]) -> tuple[pl.DataFrame, int]:
    """(the rows that fulfil every condition, how many the table has at that version)."""
    _check_version(lake, name, version)
    rows = lake.read(name, version)
    total = rows.height
    for condition in where:
        column, sign, value = condition.partition("=")
        if not sign:
            raise UsageError(f"--where {condition}: must be COLUMN=VALUE, such as {TABLES[name].key[0]}=…")
        if column not in rows.columns:
            raise UsageError(
                f"--where {condition}: {name} has no column '{column}'; {_close(column, rows.columns)}"
                f"its columns are {', '.join(rows.columns)}"
            )
        rows = rows.filter(pl.col(column).cast(pl.String, strict=False) == value)
    return rows, total


def count_words(shown: int, found: int, total: int, name: str, version: int | None, where: list[str]) -> str:
    """How much of the table the rows are."""
    at = f" at version {version}" if version is not None else ""
    if not where:
        return f"{shown:,} of {total:,} rows of {name}{at}"
    return f"{shown:,} of {found:,} rows with {' and '.join(where)}, of {total:,} in {name}{at}"


def _check_version(lake: Lake, name: str, version: int | None) -> None:
    newest = lake.version(name)
    if version is None or 0 <= version <= newest:
        return
    there = f"it has versions 0 to {newest}" if newest >= 0 else "it has none yet"
    raise UsageError(f"--version {version}: there is no such version of {name}; {there}")


def _close(given: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(given, list(known), 1)
    return f"did you mean '{close[0]}'? " if close else ""
