"""What must hold of a lake that was made under kills: the same rows, whole pictures, no process left running."""

import time
from pathlib import Path

import polars as pl

from schemas.errors import LakeError
from schemas.tables import TABLES
from tasks.lake import Lake

# What names a run, a moment or a version number, not a fact about the data.
_TIMES = {"written_at", "fetched_at", "checked_at", "created_at", "reviewed_at"}
PASSING = {"run_id", "table_versions_json", "checks_json", "seconds", "tokens_per_s"} | _TIMES
LOGS = {"runs", "failures", "decisions", "calls"}
MADE_FROM_TIMES = {"scores": {"made_from"}}  # a hash of predictions, seconds included
TIMED = "seconds_mean"  # a metric: how long an answer took


def differences(left: Lake, right: Lake, but_for: frozenset[str] = frozenset()) -> list[str]:
    """Tables that differ, with a word on how; columns of `but_for` (NAME or TABLE.NAME) and their means may."""
    found = []
    for name in TABLES:
        if name in LOGS:
            continue
        passing = PASSING | but_for | MADE_FROM_TIMES.get(name, set())
        columns = [c for c in TABLES[name].schema.names if c not in passing and f"{name}.{c}" not in passing]
        one, other = (
            _facts(lake, name, but_for).select(columns).sort(list(TABLES[name].key)) for lake in (left, right)
        )
        if one.equals(other):
            continue
        if one.height != other.height:
            found.append(f"{name}: {one.height} rows undisturbed, {other.height} after the kills")
            continue
        wrong = [c for c in columns if not one[c].equals(other[c])]
        found.append(f"{name}: columns {', '.join(wrong)} differ")
    if right.read("failures").height:
        found.append(f"failures: {right.read('failures').height} rows are left")
    for name in TABLES:
        rows = right.read(name)
        if rows.select(TABLES[name].key).is_duplicated().any():
            found.append(f"{name}: a key stands twice")
    return found


def _facts(lake: Lake, name: str, but_for: frozenset[str]) -> pl.DataFrame:
    """The table's rows without those that hold a duration, and addresses without the world's own."""
    rows = lake.read(name)
    if "request_url" in rows.columns:
        rows = rows.with_columns(pl.col("request_url").str.replace("^https?://[^/]+", ""))
    left_out = [TIMED, *(f"{column}_mean" for column in but_for)]
    return rows.filter(~pl.col("metric").is_in(left_out)) if name == "scores" else rows


def stray_files(lake: Lake) -> list[str]:
    """Pictures that are not whole: none may exist, however the writer ended."""
    broken = []
    for row in lake.read("images").iter_rows(named=True):
        try:
            lake.images.read(row["sha256"], row["extension"])
        except LakeError as error:
            broken.append(f"{row['image_id']}: {error}")
    return broken


def stray_processes(folder: Path) -> list[str]:
    """Servers or workers that outlived the command they belonged to."""
    deadline = time.monotonic() + 30  # a busy machine takes its time to end them
    while (found := _of_folder(folder)) and time.monotonic() < deadline:
        time.sleep(1)
    return found


def _of_folder(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            said = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue  # it ended while we looked, or is not ours
        if str(folder).encode() in said:
            found.append(f"process {process.name} is still there")
    return found
