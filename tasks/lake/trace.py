"""The way back: from any row of the lake to the request that fetched its image and the plan that requested it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from schemas.errors import NotFound
from tasks.lake import Lake
from tasks.lake.reading import newest_versions

SHORTEST = 6  # letters of an id that is cut short
SHOWN = 5  # ids that share a beginning


@dataclass(frozen=True)
class Step:
    """One row on the way, with the run that wrote it."""

    table: str
    row_id: str
    facts: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)


# table -> (key column, facts worth showing, columns that lead further back and the tables they lead to)
_WAYS: dict[str, tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]] = {
    "samples": (
        "sample_id",
        ("training_stage", "licence", "attribution"),
        (("snapshot_id", "snapshots"), ("trajectory_id", "trajectories"), ("image_id", "labels")),
    ),
    "models": (
        "model_id",
        ("training_stage", "base", "samples", "steps", "checkpoint"),
        (("parent_id", "models"), ("snapshot_id", "snapshots")),
    ),
    "trajectories": (
        "trajectory_id",
        ("recipe", "verdict", "reasons", "error_km", "tool_calls", "answer"),
        (("image_id", "labels"),),
    ),
    "attempts": ("attempt_id", ("policy", "trial", "error_km", "answer"), (("image_id", "labels"),)),
    "labels": (
        "image_id",
        ("country", "region", "city", "localizability", "judge_model", "split"),
        (("image_id", "images"),),
    ),
    "images": (
        "image_id",
        (
            *("kind", "source", "source_id", "request_url", "http_status", "fetched_at", "captured_at", "creator"),
            *("licence", "attribution", "sha256", "tombstone"),
        ),
        (("place_id", "places"),),
    ),
    "views": (
        "view_id",
        ("yaw_deg", "pitch_deg", "roll_deg", "fov_deg", "width", "height", "licence", "attribution", "sha256"),
        (("image_id", "images"),),
    ),
    "places": ("place_id", ("country", "admin1", "cell", "lat", "lon", "probability", "seed", "plan_version"), ()),
    "snapshots": ("snapshot_id", ("status", "reviewer", "reviewed_at", "report", "table_versions_json"), ()),
}


def trace(lake: Lake, row_id: str) -> list[Step]:
    """The steps from the row with this id back to its origin, each table once for each row."""
    steps: list[Step] = []
    seen: set[tuple[str, str]] = set()
    start = _table_of(lake, row_id)
    if start is None:
        row_id = _whole_id(lake, row_id)
        start = _table_of(lake, row_id)
        assert start is not None
    _follow(lake, start, row_id, steps.append, seen)
    return steps


def _table_of(lake: Lake, row_id: str) -> str | None:
    return next((table for table in _WAYS if _row(lake, table, row_id) is not None), None)


def _whole_id(lake: Lake, beginning: str) -> str:
    """The one id that begins so."""
    ids: set[str] = set()
    if len(beginning) >= SHORTEST:
        for table, (key, _, _) in _WAYS.items():
            ids.update(lake.collect(table, lake.scan(table).filter(pl.col(key).str.starts_with(beginning)))[key])
    if len(ids) == 1:
        return ids.pop()
    if ids:
        some = ", ".join(sorted(ids)[:SHOWN]) + (", …" if len(ids) > SHOWN else "")
        raise NotFound(f"{len(ids)} ids begin with '{beginning[:80]}': {some}")
    raise NotFound(
        f"no row has the id '{beginning[:80]}', nor one that begins so ({SHORTEST} letters are needed); looked in "
        f"{', '.join(_WAYS)} (`geofix show TABLE` lists ids)"
    )


def _follow(lake: Lake, table: str, row_id: str, report: Callable[[Step], None], seen: set[tuple[str, str]]) -> None:
    if (table, row_id) in seen:
        return
    seen.add((table, row_id))
    row = _row(lake, table, row_id)
    if row is None:
        return
    _, shown, ways = _WAYS[table]
    facts = {name: row[name] for name in shown if row[name] is not None}
    report(Step(table, row_id, facts, _run(lake, row["run_id"])))
    for column, target in ways:
        if row[column]:
            _follow(lake, target, row[column], report, seen)


def _row(lake: Lake, table: str, row_id: str) -> dict[str, Any] | None:
    rows = lake.collect(table, lake.scan(table).filter(pl.col(_WAYS[table][0]) == row_id))
    return newest_versions(rows, [_WAYS[table][0]]).row(0, named=True) if rows.height else None


def _run(lake: Lake, run_id: str | None) -> dict[str, Any]:
    if not run_id:
        return {}
    wanted = ("stage", "code_version", "config_hash", "input_versions_json", "finished_at")
    rows = lake.collect("runs", lake.scan("runs").filter(pl.col("run_id") == run_id).select(*wanted))
    # A killed run has no row of its own; its commits still carry its id.
    return {"run_id": run_id, **(rows.row(0, named=True) if rows.height else {"status": "killed before its end"})}
