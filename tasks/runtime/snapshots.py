"""The approved snapshot that the stages after the review read, at the table versions it names."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from schemas.errors import NotFound, StageRefused
from tasks.lake import Lake

SHORTEST = 6  # letters of an id that is cut short
KNOWN_SHOWN = 10
CHECKS_SHOWN = 5


@dataclass(frozen=True)
class Snapshot:
    """An approved snapshot: its id, and the version of each table that belongs to it."""

    snapshot_id: str
    versions: Mapping[str, int]


def approved_snapshot(lake: Lake, wanted: str | None = None) -> Snapshot:
    """The snapshot with this id, or the newest approved one; StageRefused says why there is none to work on."""
    if wanted is not None:
        row = find_snapshot(lake, wanted)
        if row["status"] != "approved":
            raise StageRefused(_not_approved(row, "snapshot"))
        return _snapshot(row)
    # The newest by creation, not the one approved last: an old snapshot may be approved again at any time.
    snapshots = lake.read("snapshots").sort("created_at", "snapshot_id", descending=True, nulls_last=True)
    if snapshots.is_empty():
        raise StageRefused("there is no snapshot to work on; run: geofix review")
    approved = snapshots.filter(pl.col("status") == "approved")
    if approved.is_empty():
        raise StageRefused(_not_approved(snapshots.row(0, named=True), "no snapshot is approved; the newest,"))
    return _snapshot(approved.row(0, named=True))


def find_snapshot(lake: Lake, wanted: str) -> dict[str, Any]:
    """The row of the one snapshot whose id is, or begins with, what was given."""
    snapshots = lake.read("snapshots").sort("created_at", descending=True)
    # A few letters could name another snapshot than the one that was meant.
    short = len(wanted) < SHORTEST
    matches = snapshots.clear() if short else snapshots.filter(pl.col("snapshot_id").str.starts_with(wanted))
    exact = matches.filter(pl.col("snapshot_id") == wanted)
    matches = exact if exact.height else matches
    if matches.height == 1:
        return matches.row(0, named=True)
    if matches.height > 1:
        raise NotFound(f"snapshot '{wanted}' is ambiguous: {', '.join(matches['snapshot_id'])}")
    if snapshots.is_empty():
        raise NotFound(f"there is no snapshot '{wanted[:80]}', nor any other yet; run: geofix review")
    known = ", ".join(f"{row['snapshot_id']} ({row['status']})" for row in snapshots.head(KNOWN_SHOWN).to_dicts())
    hint = f" (at least {SHORTEST} letters of its id are needed)" if short else ""
    raise NotFound(f"there is no snapshot '{wanted[:80]}'{hint}; known: {known}")


def verdict_text(row: Mapping[str, Any]) -> str:
    """What the checks and the reviewer say of a snapshot, as one sentence: the same everywhere."""
    return f"snapshot {row['snapshot_id']} {checks_text(row)}; it is {decision_text(row)}"


def checks_text(row: Mapping[str, Any]) -> str:
    """What the checks say of a snapshot, as one phrase; names those that fail, with examples."""
    checks = json.loads(row["checks_json"] or "[]")
    failing = [check for check in checks if not check["passed"]]
    if row["checks_passed"] and not failing:
        return f"passes all {len(checks)} checks"
    named = [
        f"{check['table']}: {check['says']}" + (f" ({', '.join(check['examples'])})" if check["examples"] else "")
        for check in failing[:CHECKS_SHOWN]
    ]
    named += [f"{len(failing) - CHECKS_SHOWN} more"] if len(failing) > CHECKS_SHOWN else []
    return f"fails {len(failing)} of {len(checks)} checks: {'; '.join(named)}"


def decision_text(row: Mapping[str, Any]) -> str:
    """What was decided about a snapshot, by whom, when and why, as one phrase."""
    if row["status"] == "pending":
        return f"pending since {row['created_at']:%Y-%m-%d %H:%M} UTC" if row["created_at"] else "pending"
    when = f" on {row['reviewed_at']:%Y-%m-%d %H:%M} UTC" if row["reviewed_at"] else ""
    why = f": {row['why']}" if row["why"] else ""
    return f"{row['status']} by {row['reviewer']}{when}{why}"


def _not_approved(row: Mapping[str, Any], which: str) -> str:
    name = row["snapshot_id"]
    if row["status"] == "pending":
        do = f"read {row['report']}, then run: geofix approve {name}, or geofix reject {name} --why REASON"
    else:
        do = "correct what was found and run: geofix refresh; its snapshot is then to be reviewed"
    return f"{which} {name} is {decision_text(row)}; {do}"


def _snapshot(row: Mapping[str, Any]) -> Snapshot:
    return Snapshot(row["snapshot_id"], json.loads(row["table_versions_json"]))
