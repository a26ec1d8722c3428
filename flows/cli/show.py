"""`geofix show TABLE`: rows as a table that fits the terminal, or whole as CSV or JSON."""

import json
import os
import sys
from dataclasses import dataclass

import polars as pl
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from flows.cli.cells import one_line
from flows.cli.command import DONE, Call
from flows.cli.lake import existing_lake
from flows.cli.printing import print_json
from flows.cli.rows import check_table, count_words, named_columns, own_columns, read_rows

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
    "scores": ("policy", "metric", "value", "low", "high", "n"),
    "snapshots": ("snapshot_id", "status", "reviewer", "why", "report", "reviewed_at"),
    "runs": ("stage", "status", "items_in", "kept", "rejected", "failed", "started_at", "finished_at", "run_id"),
    "rejects": ("stage", "item_id", "reason", "evidence_json"),
    "failures": ("stage", "item_id", "kind", "attempts", "message"),
}
CELL = 32  # characters of a value beside others; the last column takes what is left of the line
WORTH = 24  # characters of a column that is cut short so that it fits
GAP = "  "
PIPE_WIDTH = 160  # where no terminal says how wide it is


@dataclass(frozen=True)
class Wanted:
    """What the options of `geofix show` ask for."""

    columns: str | None = None
    limit: int = 10
    where: tuple[str, ...] = ()
    version: int | None = None
    format: str = "table"


def show_table(call: Call, name: str, wanted: Wanted) -> int:
    """Rows of a table."""
    check_table(name)
    lake = existing_lake(call, read_only=True)
    found, total = read_rows(lake, name, wanted.version, wanted.where)
    rows = found.head(wanted.limit)
    chosen = named_columns(name, wanted.columns, rows.columns) if wanted.columns else None
    if wanted.format != "table":
        rows = rows.select(chosen or rows.columns)
        _print_whole(rows, wanted.format)
        return DONE
    known = own_columns(name, rows.columns)
    first = [column for column in FIRST.get(name, ()) if column in rows.columns]
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(highlight=False, width=PIPE_WIDTH)
    left = _print_table(console, rows, chosen or list(dict.fromkeys([*first, *known])), fit=chosen is None)
    console.print(
        Text(count_words(rows.height, found.height, total, name, wanted.version, wanted.where)), soft_wrap=True
    )
    if left:
        console.print(
            Text(f"{left} more columns: --columns all, or --format csv or json for whole values", style="dim"),
            soft_wrap=True,
        )
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
