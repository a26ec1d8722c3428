"""`geofix show TABLE`: rows as a table that fits the terminal, or whole as CSV or JSON."""

import difflib
import json
import os
import sys
from collections.abc import Iterable, Sequence

import polars as pl
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from flows.cli.command import DONE, Call, UsageError
from flows.cli.lake import existing_lake
from flows.cli.printing import one_line, print_json
from schemas.tables import SYSTEM_COLUMNS, TABLES
from tasks.lake import Lake

# What a person looks for first; without an entry it is the contract's order. As many are printed as fit.
FIRST = {
    "places": ("place_id", "country", "admin1", "city", "lat", "lon", "split"),
    "images": ("image_id", "kind", "place_id", "lat", "lon", "licence", "creator", "width", "height", "captured_at"),
    "labels": ("image_id", "country_code", "region", "city", "localizability_score", "split", "judge_reason"),
    "trajectories": ("trajectory_id", "verdict", "error_km", "tool_calls", "answer", "reasons"),
    "attempts": ("attempt_id", "policy", "trial", "error_km", "answer"),
    "samples": ("sample_id", "training_stage", "phase", "image_id", "trajectory_id", "licence"),
    "models": ("model_id", "training_stage", "steps", "samples", "parent_id", "snapshot_id", "base"),
    "predictions": ("image_id", "policy", "error_km", "geoscore", "answer"),
    "scores": ("split", "policy", "metric", "value", "low", "high", "n"),
    "snapshots": ("snapshot_id", "status", "reviewer", "why", "report", "reviewed_at"),
    "runs": ("stage", "status", "items_in", "kept", "rejected", "failed", "started_at", "finished_at", "run_id"),
    "rejects": ("stage", "item_id", "reason", "evidence_json"),
    "failures": ("stage", "item_id", "kind", "attempts", "message"),
}
CELL = 32  # characters of a value beside others; the last column takes what is left of the line
WORTH = 24  # characters of a column that is cut short so that it fits
GAP = "  "
PIPE_WIDTH = 160  # where no terminal says how wide it is


def show_table(
    call: Call,
    name: str,
    *,
    columns: str | None = None,
    limit: int = 10,
    where: Sequence[str] = (),
    version: int | None = None,
    form: str = "table",
) -> int:
    """Rows of a table, as a table, JSON or CSV. A wrong name is answered with the right ones."""
    check_table(name)
    matching, total = read_rows(existing_lake(call, read_only=True), name, version, where)
    rows = matching.head(limit)
    chosen = named_columns(name, columns, rows.columns) if columns else None
    if form != "table":
        _print_whole(rows.select(chosen or rows.columns), form)
        return DONE
    known = own_columns(name, rows.columns)
    first = [column for column in FIRST.get(name, ()) if column in rows.columns]
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(highlight=False, width=PIPE_WIDTH)
    left = _print_table(console, rows, chosen or list(dict.fromkeys([*first, *known])), fit=chosen is None)
    console.print(Text(count_words(rows.height, matching.height, total, name, version, where)), soft_wrap=True)
    if left:
        more = f"{left} more columns: --columns all, or --format csv or json for whole values"
        console.print(Text(more, style="dim"), soft_wrap=True)
    return DONE


def _print_whole(rows: pl.DataFrame, kind: str) -> None:
    if kind == "json":
        print_json(rows.to_dicts())
        return
    nested = [name for name, dtype in rows.schema.items() if dtype.is_nested()]
    flat = rows.with_columns(
        pl.Series(
            name, [None if v is None else json.dumps(v, ensure_ascii=False, default=str) for v in rows[name].to_list()]
        )
        for name in nested
    )
    sys.stdout.write(flat.write_csv())


def _print_table(console: Console, rows: pl.DataFrame, columns: list[str], fit: bool) -> int:
    """Print the columns, or with `fit` as many as the width holds; returns how many were left out."""
    cells = {c: [one_line(value) for value in rows[c].to_list()] for c in columns}
    if fit and rows.height:
        columns = [c for c in columns if any(cells[c])]
    widths: dict[str, int] = {}
    left = console.width
    for column in columns:
        width = max([cell_len(column), *(cell_len(text) for text in cells[column])])
        width = min(width, left if column == columns[-1] else CELL)
        if fit and widths and width > left:
            if left >= WORTH:  # the beginning of a long text is better than none of it
                widths[column] = left
            break
        widths[column] = max(width, cell_len(column))
        left -= widths[column] + len(GAP)
    lines = [(list(widths), "bold")] + [([cells[c][row] for c in widths], "") for row in range(rows.height)]
    for texts, style in lines:
        row = GAP.join(
            _cell(text, width, rows.schema[column].is_numeric())
            for text, (column, width) in zip(texts, widths.items(), strict=True)
        )
        console.print(Text(row.rstrip(), style=style), soft_wrap=True)
    return len(columns) - len(widths)


def _cell(text: str, width: int, to_the_right: bool) -> str:
    taken = cell_len(text)
    if taken > width:
        return f"{set_cell_size(text, width - 1)}…"
    return " " * (width - taken) + text if to_the_right else text + " " * (width - taken)


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


def named_columns(name: str, column_list: str, known: Sequence[str]) -> list[str]:
    """The columns that `--columns` names."""
    if column_list.strip() == "all":
        return list(known)
    wanted = [part.strip() for part in column_list.split(",") if part.strip()]
    if not wanted:
        raise UsageError(f"--columns: must name columns of {name}, such as {','.join(list(known)[:2])}, or `all`")
    for column in wanted:
        _check_column(name, column, known, f"--columns {column_list}")
    return list(dict.fromkeys(wanted))


def own_columns(name: str, known: Sequence[str]) -> list[str]:
    """The key, then the table's own columns in the contract's order: what a reader asks for first comes first."""
    key = list(TABLES[name].key)
    last = ["written_at"] if name in ("runs", "rejects", "failures") else []
    return [c for c in dict.fromkeys([*key, *known]) if c in key or c not in SYSTEM_COLUMNS] + [
        c for c in last if c in known
    ]


def count_words(shown: int, matching: int, total: int, name: str, version: int | None, where: Sequence[str]) -> str:
    """How much of the table the rows are."""
    at = f" at version {version}" if version is not None else ""
    if not where:
        return f"{shown:,} of {total:,} rows of {name}{at}"
    return f"{shown:,} of {matching:,} rows with {' and '.join(where)}, of {total:,} in {name}{at}"


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


def _close(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), 1)
    return f"did you mean '{close[0]}'? " if close else ""
