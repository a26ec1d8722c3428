"""The reviewer's word on a snapshot. Training takes approved snapshots only."""

from datetime import UTC, datetime
from typing import Any

import polars as pl

from schemas.errors import GeofixError, NotFound
from tasks.lake import Commit, Lake
from tasks.review.evidence import snapshot_id as snapshot_id_of
from tasks.review.report import restamp
from tasks.runtime.identity import code_version, new_run_id

SHORTEST = 6  # letters of an id that is cut short
RULE = "rule: auto_approve"  # the reviewer's name when nobody looked


class ReviewRefused(GeofixError):
    """The word cannot be given: the snapshot is unknown, or does not pass its checks."""


def approve(lake: Lake, snapshot_id: str, reviewer: str, why: str | None = None, force: bool = False) -> dict[str, Any]:
    """The snapshot's row, now approved. One that fails its checks needs `force` and a reason."""
    row = _known(lake, snapshot_id)
    if not row["checks_passed"]:
        if not force:
            raise ReviewRefused(
                f"snapshot {row['snapshot_id']} does not pass its checks; see {lake.blobs.uri(row['report'])}, "
                "or approve it all the same with --force --why REASON"
            )
        if not (why or "").strip():
            raise ReviewRefused("a snapshot that does not pass its checks is approved only with a reason: --why REASON")
    return _set(lake, row, "approved", reviewer, why)


def reject(lake: Lake, snapshot_id: str, reviewer: str, why: str) -> dict[str, Any]:
    """The snapshot's row, now rejected, with the reason."""
    if not why.strip():
        raise ReviewRefused("say why the snapshot is rejected: --why REASON")
    return _set(lake, _known(lake, snapshot_id), "rejected", reviewer, why)


def newest_snapshot(lake: Lake) -> dict[str, Any] | None:
    """The snapshot of what the tables hold now; else the one written last; None while there is none.

    The last one written is not always the present one: when the data returns to an earlier state, so does its
    snapshot, with whatever was said of it.
    """
    snapshots = lake.read("snapshots").sort("written_at", "snapshot_id", descending=True)
    present = snapshots.filter(pl.col("snapshot_id") == snapshot_id_of(lake.read("images"), lake.read("labels")))
    found = present if present.height else snapshots
    return found.row(0, named=True) if found.height else None


def auto_approve(lake: Lake, snapshot_id: str) -> dict[str, Any]:
    """The snapshot's row, approved by rule if every check passes and nobody has said anything yet; else as it is."""
    row = _known(lake, snapshot_id)
    if row["status"] != "pending" or not row["checks_passed"]:
        return row
    return _set(lake, row, "approved", RULE, "every check passed")


def _known(lake: Lake, wanted: str) -> dict[str, Any]:
    """The one snapshot whose id is, or begins with, what was given."""
    snapshots = lake.read("snapshots").sort("written_at", descending=True)
    # An id may be cut short, but not so short that a slip of the hand approves something.
    short = len(wanted) < SHORTEST
    found = snapshots.clear() if short else snapshots.filter(pl.col("snapshot_id").str.starts_with(wanted))
    exact = found.filter(pl.col("snapshot_id") == wanted)
    found = exact if exact.height else found
    if found.height == 1:
        return found.row(0, named=True)
    if found.height > 1:
        raise NotFound(f"snapshot '{wanted}' is ambiguous: {', '.join(found['snapshot_id'])}")
    if snapshots.is_empty():
        raise NotFound(f"there is no snapshot '{wanted[:80]}', nor any other yet; run: geofix review")
    known = ", ".join(f"{row['snapshot_id']} ({row['status']})" for row in snapshots.head(10).to_dicts())
    hint = f" (at least {SHORTEST} letters of its id are needed)" if short else ""
    raise NotFound(f"there is no snapshot '{wanted[:80]}'{hint}; known: {known}")


def _set(lake: Lake, row: dict[str, Any], status: str, reviewer: str, why: str | None) -> dict[str, Any]:
    if not reviewer.strip():
        raise ReviewRefused("a reviewer's name is needed: --reviewer NAME")
    # Stage, item and made_from stay as they are: the review's work is done, only the word on it is new.
    new = {
        **row,
        "status": status,
        "reviewer": reviewer.strip(),
        "why": (why or "").strip() or None,
        "reviewed_at": datetime.now(UTC),
    }
    commit = Commit(new_run_id(status), 1, stage=f"review.{status}", code_version=code_version())
    lake.upsert("snapshots", [new], commit)
    restamp(lake, new)
    return new
