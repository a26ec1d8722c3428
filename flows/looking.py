"""Commands that look into the lake, or write one word into it."""

import dataclasses
import getpass
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.background import resume_flow_runs
from flows.command import DONE, Call
from flows.printing import print_json
from flows.rows import check_table, count_words, read_rows
from schemas.errors import LakeError
from schemas.tables import SYSTEM_COLUMNS, TABLES
from tasks.lake import Lake
from tasks.lake.trace import trace

# Columns that say little on a screen; --json has them all.
LONG = ("messages_json", "config_json", "checks_json", "table_versions_json", "metrics_json")

LONGEST = 1000  # characters of a value: a whole message, not a whole file


def list_tables(call: Call) -> int:
    """Every table with its rows and version."""
    lake = existing_lake(call, read_only=True)
    found = []
    for name in lake.existing():
        rows = lake.scan(name).select(live=pl.col("tombstone").is_null().sum(), all=pl.len()).collect().row(0)
        found.append({"table": name, "rows": rows[0], "tombstones": rows[1] - rows[0], "version": lake.version(name)})
    if call.as_json:
        print_json(found)
        return DONE
    table = Table(box=None, header_style="bold")
    for column in ("table", "rows", "tombstones", "version", "what it holds"):
        table.add_column(column, justify="left" if column in ("table", "what it holds") else "right")
    for row in found:
        numbers = [f"{row[c]:,}" for c in ("rows", "tombstones", "version")]
        table.add_row(row["table"], *numbers, TABLES[row["table"]].about)
    console = Console()
    console.print(f"lake {lake.root}", highlight=False)
    console.print(table)
    return DONE


def show_table(call: Call, name: str, limit: int, version: int | None, where: list[str]) -> int:
    """Rows of a table, one block a row."""
    check_table(name)
    lake = existing_lake(call, read_only=True)
    found, total = read_rows(lake, name, version, where)
    rows = found.head(limit)
    if call.as_json:
        print_json(rows.to_dicts())
        return DONE
    console = Console(highlight=False)
    for row in rows.iter_rows(named=True):
        key = " ".join(str(row[k]) for k in TABLES[name].key)
        console.print(Text(key, style="bold"))
        shown = {
            column: f"({len(value)} characters)" if column in LONG else _one_line(value)
            for column, value in row.items()
            if not (value is None or column in TABLES[name].key or (column in SYSTEM_COLUMNS and column != "run_id"))
        }
        _print_block(console, shown)
    console.print(Text(count_words(rows.height, found.height, total, name, version, where)), soft_wrap=True)
    return DONE


def trace_row(call: Call, row_id: str) -> int:
    """The way back from a row, printed from the row to its origin."""
    steps = trace(existing_lake(call, read_only=True), row_id)
    if call.as_json:
        print_json([dataclasses.asdict(step) for step in steps])
        return DONE
    console = Console(highlight=False)
    for number, step in enumerate(steps):
        console.print(Text(("└─ " if number else "") + f"{step.table} {step.row_id}", style="bold"))
        for name, value in step.facts.items():
            console.print(Text(f"     {name:<18} {_one_line(value)}"), soft_wrap=True)
        run = step.run
        if run:
            when = run.get("finished_at")
            by = f"{run['run_id']}" + (f", geofix {run['code_version']}" if run.get("code_version") else "")
            console.print(
                Text(f"     {'written by':<18} {by}{f', {when:%Y-%m-%d %H:%M}' if when else ''}", style="dim"),
                soft_wrap=True,
            )
    return DONE


def decide(call: Call, snapshot: str, approve: bool, why: str | None, reviewer: str | None, force: bool = False) -> int:
    """The reviewer's word on a snapshot."""
    from tasks import review

    lake = existing_lake(call)
    who = reviewer or getpass.getuser()
    if approve:
        row = review.approve(lake, snapshot, who, why, force=force)
    else:
        row = review.reject(lake, snapshot, who, why or "")
    resumed = resume_flow_runs(lake, row)
    if call.as_json:
        print_json({name: row[name] for name in ("snapshot_id", "status", "reviewer", "why")} | {"resumed": resumed})
    else:
        print(f"snapshot {row['snapshot_id']} is {row['status']} (by {row['reviewer']})")
        for name in resumed:
            print(f"flow run {name} goes on")
    return DONE


def score_predictions(file: Path, as_json: bool) -> int:
    """Every metric over a file of predictions."""
    from tasks.evaluate.predictions import render_report, score_file

    report = score_file(file)
    if as_json:
        print_json(report.to_dict())
    else:
        print(render_report(report))
    return DONE


def existing_lake(call: Call, *, read_only: bool = False) -> Lake:
    """The lake the options name, which must be there already."""
    config = call.options().resolve()
    if not (Path(config.lake).expanduser() / "tables").is_dir():
        raise LakeError(f"there is no lake at '{config.lake}'; name one with --lake, or make one with `geofix demo`")
    return Lake(config.lake, read_only=read_only)


def _print_block(console: Console, values: dict[str, str]) -> None:
    """Name and value on a line; on a screen a long one goes on below itself, in a pipe it stays one line."""
    if not console.is_terminal:
        for name, value in values.items():
            console.print(Text(f"  {name:<22} {value}"), soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 1))
    grid.add_column(min_width=24)
    grid.add_column(overflow="fold")
    for name, value in values.items():
        grid.add_row(Text(f"  {name}"), Text(value))
    console.print(grid)


def _one_line(value: Any) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}" + (" UTC" if value.utcoffset() == timedelta(0) else "")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
