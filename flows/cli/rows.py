"""Rows and columns of a table as `geofix show` asks for them: a wrong name is answered with the right ones."""

import difflib
from collections.abc import Iterable, Sequence

import polars as pl

from flows.cli.command import UsageError
from schemas.tables import SYSTEM_COLUMNS, TABLES
from tasks.lake import Lake


def check_table(name: str) -> None:
    """Refuse a table that does not exist."""
    if name not in TABLES:
        raise UsageError(f"there is no table '{name}'; {_close(name, TABLES)}the tables are {', '.join(TABLES)}")


def read_rows(lake: Lake, name: str, version: int | None, where: Sequence[str]) -> tuple[pl.DataFrame, int]:
    """(the rows that fulfil every condition, how many the table has at that version)."""
    _check_version(lake, name, version)
    rows = lake.read(name, version)
    total = rows.height
    for condition in where:
        column, sign, value = condition.partition("=")
        if not sign:
            raise UsageError(f"--where {condition}: must be COLUMN=VALUE, such as {TABLES[name].key[0]}=…")
        _check_column(name, column, rows.columns, f"--where {condition}")
        rows = rows.filter(pl.col(column).cast(pl.String, strict=False) == value)
    return rows, total


def named_columns(name: str, given: str, known: Sequence[str]) -> list[str]:
    """The columns that `--columns` names."""
    if given.strip() == "all":
        return list(known)
    wanted = [one.strip() for one in given.split(",") if one.strip()]
    if not wanted:
        raise UsageError(f"--columns: must name columns of {name}, such as {','.join(list(known)[:2])}, or `all`")
    for column in wanted:
        _check_column(name, column, known, f"--columns {given}")
    return list(dict.fromkeys(wanted))


def own_columns(name: str, known: Sequence[str]) -> list[str]:
    """The key, then the table's own columns in the contract's order: what a reader asks for first comes first."""
    key = list(TABLES[name].key)
    last = ["written_at"] if name in ("runs", "rejects", "failures") else []
    return [c for c in dict.fromkeys([*key, *known]) if c in key or c not in SYSTEM_COLUMNS] + [
        c for c in last if c in known
    ]


def count_words(shown: int, found: int, total: int, name: str, version: int | None, where: Sequence[str]) -> str:
    """How much of the table the rows are."""
    at = f" at version {version}" if version is not None else ""
    if not where:
        return f"{shown:,} of {total:,} rows of {name}{at}"
    return f"{shown:,} of {found:,} rows with {' and '.join(where)}, of {total:,} in {name}{at}"


def _check_column(name: str, column: str, known: Sequence[str], option: str) -> None:
    if column not in known:
        raise UsageError(
            f"{option}: {name} has no column '{column}'; {_close(column, known)}its columns are {', '.join(known)}"
        )


def _check_version(lake: Lake, name: str, version: int | None) -> None:
    newest = lake.version(name)
    if version is None or 0 <= version <= newest:
        return
    there = f"it has versions 0 to {newest}" if newest >= 0 else "it has none yet"
    raise UsageError(f"--version {version}: there is no such version of {name}; {there}")


def _close(given: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(given, list(known), 1)
    return f"did you mean '{close[0]}'? " if close else ""
