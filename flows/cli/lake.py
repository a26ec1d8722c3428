"""What `geofix tables`, `trace`, `maintain`, `migrate`, `backup`, `restore` and `verify` do."""

import dataclasses
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.cli.command import DONE, FAILED, Call, UsageError
from flows.cli.printing import one_line, print_json
from schemas.errors import InputError, LakeError
from schemas.tables import TABLES
from tasks.lake import Lake


def list_tables(call: Call) -> int:
    """Every table with its rows and version; one that cannot be read with the reason, and exit code 1."""
    lake = existing_lake(call, read_only=True)
    with ThreadPoolExecutor() as pool:  # opening a table is delta-rs' work, which other threads need not wait for
        counts = list(pool.map(lambda name: _counts(lake, name), lake.existing()))
    damaged = [row for row in counts if "damaged" in row]
    if call.as_json:
        print_json(counts)
        return FAILED if damaged else DONE
    table = Table(box=None, header_style="bold")
    for column in ("table", "rows", "tombstones", "version", "what it holds"):
        table.add_column(column, justify="left" if column in ("table", "what it holds") else "right")
    for row in counts:
        numbers = ["–" if row[c] is None else f"{row[c]:,}" for c in ("rows", "tombstones", "version")]
        table.add_row(row["table"], *numbers, "damaged, see below" if row in damaged else TABLES[row["table"]].about)
    console = Console(highlight=False)
    console.print(f"lake {lake.uri}")
    console.print(table)
    for row in damaged:
        print(f"geofix: {row['damaged']}", file=sys.stderr)
    return FAILED if damaged else DONE


def _counts(lake: Lake, name: str) -> dict[str, Any]:
    try:
        counts = lake.scan(name).select(live=pl.col("tombstone").is_null().sum(), all=pl.len())
        rows = lake.collect(name, counts).row(0)
        return {"table": name, "rows": rows[0], "tombstones": rows[1] - rows[0], "version": lake.version(name)}
    except LakeError as error:
        return {"table": name, "rows": None, "tombstones": None, "version": None, "damaged": str(error)}


def trace_row(call: Call, row_id: str) -> int:
    """The origin of a row, printed from the row to the request that fetched its picture."""
    from tasks.lake.trace import trace

    steps = trace(existing_lake(call, read_only=True), row_id)
    if call.as_json:
        print_json([dataclasses.asdict(step) for step in steps])
        return DONE
    console = Console(highlight=False)
    for number, step in enumerate(steps):
        console.print(Text(("└─ " if number else "") + f"{step.table} {step.row_id}", style="bold"))
        for name, value in step.facts.items():
            console.print(Text(f"     {name:<18} {one_line(value)}"), soft_wrap=True)
        run = step.run
        if run:
            when = run.get("finished_at")
            by = f"{run['run_id']}" + (f", geofix {run['code_version']}" if run.get("code_version") else "")
            console.print(
                Text(f"     {'written by':<18} {by}{f', {when:%Y-%m-%d %H:%M}' if when else ''}", style="dim"),
                soft_wrap=True,
            )
    return DONE


def existing_lake(call: Call, *, read_only: bool = False) -> Lake:
    """The lake the options name, which must be there already."""
    config = call.options().resolve()
    if not Lake(config.lake, read_only=True).is_there():
        raise UsageError(f"there is no lake at '{config.lake}'; name one with --lake, or make one with `geofix demo`")
    return Lake(config.lake, read_only=read_only)


def maintain_lake(call: Call, dry_run: bool) -> int:
    """Do the maintenance and print what it freed."""
    from tasks.lake.maintain import maintain

    lake = existing_lake(call, read_only=True)  # a full disk does not keep it from freeing some
    done = maintain(lake, call.options().resolve().maintain, dry_run)
    freed = sum(job.bytes for job in done)
    if call.as_json:
        shown = [dataclasses.asdict(job) for job in done]
        print_json({"lake": lake.uri, "dry_run": dry_run, "freed_bytes": freed, "done": shown})
        return DONE
    would = "would be " if dry_run else ""
    for job in done:
        size = f", {megabytes(job.bytes)}" if job.bytes else ""
        print(f"{job.count:>8,} {job.where} {would}{job.what}{size}")
    print(f"{megabytes(freed)} {would}freed in {lake.uri}" if done else f"nothing to do in {lake.uri}")
    return DONE


def migrate_lake(call: Call, dry_run: bool) -> int:
    """Print what each table needs, and do it unless it is a dry run."""
    from tasks.lake.migrate import migrate, pending_migrations
    from tasks.runtime.items.identity import new_run_id

    lake = existing_lake(call, read_only=dry_run)
    migrations, run_id = list(pending_migrations(lake)), new_run_id("migrate")
    for migration in migrations:
        if not dry_run:
            migrate(lake, migration, run_id)
        if not call.as_json:
            print(migration)
    if call.as_json:
        print_json(
            {
                "lake": lake.uri,
                "dry_run": dry_run,
                "tables": [dataclasses.asdict(migration) for migration in migrations],
            }
        )
    elif not migrations:
        print(f"nothing to do in {lake.uri}: its tables have this version's columns")
    return DONE


def back_up(call: Call, to: str, quick: bool) -> int:
    """Copy the lake there and check the copy; exit code 1 if it is not whole."""
    return _copied(call, existing_lake(call, read_only=True), Lake(to, read_only=True), quick)


def restore_lake(call: Call, source: str, quick: bool) -> int:
    """Copy a backup to the configured place, which must be empty, and check it."""
    from tasks.lake.backup import check_backup

    lake = Lake(call.options().resolve().lake, read_only=True)
    if lake.existing():
        raise InputError(f"there is a lake at {lake.uri} already; name an empty place with --lake")
    backup = Lake(source, read_only=True)
    check_backup(backup)
    return _copied(call, backup, lake, quick)


def _copied(call: Call, source: Lake, target: Lake, quick: bool) -> int:
    from tasks.lake.backup import copy_lake

    def progress(done: int, count: int) -> None:
        if not (call.quiet or call.as_json) and (done % 500 == 0 or done == count):
            print(f"{done:,} of {count:,} files", file=sys.stderr, flush=True)

    copied = copy_lake(source, target, progress)
    if not call.as_json and not call.quiet:
        removed = f", {copied.removed:,} removed" if copied.removed else ""
        size = megabytes(copied.bytes)
        there = f"{copied.kept:,} were there{removed}"
        print(f"{source.uri} -> {target.uri}: {copied.files:,} files ({size}) copied, {there}")
    return verified(call, target, quick, dataclasses.asdict(copied))


def verify_lake(call: Call, quick: bool) -> int:
    """Print what is wrong, as it is found; exit code 1 if anything is."""
    return verified(call, existing_lake(call, read_only=True), quick)


def verified(call: Call, lake: Lake, quick: bool, told: Mapping[str, Any] | None = None) -> int:
    """Print what is wrong with a lake, as it is found, after what else is `told`; exit code 1 if anything is."""
    from tasks.lake.verify import verify

    problems = []
    for problem in verify(lake, quick):
        problems.append(problem)
        if not call.as_json:
            print(f"{' '.join(filter(None, (problem.table, problem.row_id)))}: {problem.what}", flush=True)
    if call.as_json:
        print_json(
            {
                "lake": lake.uri,
                **(told or {}),
                "quick": quick,
                "problems": [dataclasses.asdict(problem) for problem in problems],
            }
        )
    elif problems:
        tables = ", ".join(dict.fromkeys(problem.table for problem in problems))
        print(f"geofix: lake {lake.uri} is damaged: {len(problems):,} problems in {tables}", file=sys.stderr)
    else:
        print(f"lake {lake.uri} is whole: {len(lake.existing())} tables" + (" (files not read)" if quick else ""))
    return FAILED if problems else DONE


def megabytes(size: int) -> str:
    """A size for people."""
    return f"{size / 1e6:,.1f} MB"
