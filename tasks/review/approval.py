"""A reviewer's decision about a snapshot. Everything after the review takes approved snapshots only."""

import functools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import polars as pl

from schemas.errors import GeofixError
from tasks.lake import Commit, Lake
from tasks.review.evidence import snapshot_id as snapshot_id_of
from tasks.review.site import renew_site
from tasks.runtime.items.identity import code_version, digest, new_run_id
from tasks.runtime.items.stage_lock import stage_lock
from tasks.runtime.snapshots import decision_text, find_snapshot

Decide = TypeVar("Decide", bound=Callable[..., dict[str, Any]])

STAGE_NAME = "review"  # of the stage that makes snapshots
RULE = "rule: auto_approve"  # the reviewer's name for an approval without a person


class ReviewRefused(GeofixError):
    """The decision cannot be made: it lacks a reason, the checks fail, or there is one already."""


def _locked(decide: Decide) -> Decide:
    """The decision, made while no review writes the snapshot's row: both read it, change it and write it back."""

    @functools.wraps(decide)
    def decide_alone(lake: Lake, *arguments: Any, **named: Any) -> dict[str, Any]:
        with stage_lock(lake, STAGE_NAME):
            return decide(lake, *arguments, **named)

    return cast(Decide, decide_alone)


@_locked
def approve(lake: Lake, snapshot_id: str, reviewer: str, why: str | None = None, force: bool = False) -> dict[str, Any]:
    """The snapshot's row, now approved. One that fails its checks or was decided before needs `force` and a reason."""
    row = find_snapshot(lake, snapshot_id)
    _refuse_silent_change(row, why, force)
    if not row["checks_passed"]:
        if not force:
            raise ReviewRefused(
                f"snapshot {row['snapshot_id']} does not pass its checks; see {lake.blobs.uri(row['report'])}, "
                "or approve it nevertheless with --force --why REASON"
            )
        if not (why or "").strip():
            raise ReviewRefused("a snapshot that does not pass its checks is approved only with a reason: --why REASON")
    return _decide(lake, row, "approved", reviewer, why)


@_locked
def reject(lake: Lake, snapshot_id: str, reviewer: str, why: str, force: bool = False) -> dict[str, Any]:
    """The snapshot's row, now rejected, with the reason. One that was decided before needs `force`."""
    if not why.strip():
        raise ReviewRefused("say why the snapshot is rejected: --why REASON")
    row = find_snapshot(lake, snapshot_id)
    _refuse_silent_change(row, why, force)
    return _decide(lake, row, "rejected", reviewer, why)


def decisions(lake: Lake, snapshot_id: str) -> list[dict[str, Any]]:
    """Every decision about a snapshot, the latest last."""
    made = lake.read("decisions").filter(pl.col("snapshot_id") == snapshot_id)
    return made.sort("decided_at", "decision_id").to_dicts()


def newest_snapshot(lake: Lake) -> dict[str, Any] | None:
    """The snapshot of what the tables hold now; else the one created last; None while there is none.

    The last one created is not always the present one: when the data returns to an earlier state, so does its
    snapshot, with the decision about it.
    """
    snapshots = lake.read("snapshots").sort("created_at", "snapshot_id", descending=True, nulls_last=True)
    present = snapshots.filter(pl.col("snapshot_id") == snapshot_id_of(lake.read("images"), lake.read("labels")))
    candidates = present if present.height else snapshots
    return candidates.row(0, named=True) if candidates.height else None


@_locked
def auto_approve(lake: Lake, snapshot_id: str) -> dict[str, Any]:
    """The snapshot's row, approved by rule if every check passes and no decision was made yet; else as it is."""
    row = find_snapshot(lake, snapshot_id)
    if row["status"] != "pending" or not row["checks_passed"]:
        return row
    return _decide(lake, row, "approved", RULE, "every check passed")


def _refuse_silent_change(row: dict[str, Any], why: str | None, force: bool) -> None:
    """A decision is changed only on purpose, with a reason; the earlier one stays in `decisions`."""
    if row["status"] != "pending" and not (force and (why or "").strip()):
        raise ReviewRefused(
            f"snapshot {row['snapshot_id']} is already {decision_text(row)}; to decide again: --force --why REASON"
        )


def _decide(lake: Lake, row: dict[str, Any], status: str, reviewer: str, why: str | None) -> dict[str, Any]:
    if not reviewer.strip():
        raise ReviewRefused("a reviewer's name is needed: --reviewer NAME")
    # Stage, item and made_from stay as they are: the review's work is done, only the decision is new.
    new = {
        **row,
        "status": status,
        "reviewer": reviewer.strip(),
        "why": (why or "").strip() or None,
        "reviewed_at": datetime.now(UTC),
    }
    run_id = new_run_id(status)
    commit = Commit(run_id, 1, stage=f"review.{status}", code_version=code_version())
    decision = {
        "decision_id": digest(run_id, row["snapshot_id"]),
        "decision": status,
        "decided_at": new["reviewed_at"],
        **{name: new[name] for name in ("snapshot_id", "reviewer", "why", "table_versions_json")},
        **{"stage": commit.stage, "item_id": row["snapshot_id"], "run_id": run_id, "written_at": new["reviewed_at"]},
    }
    # First the history: a decision that is not in it could be replaced without a trace.
    lake.append("decisions", [decision], commit)
    lake.upsert("snapshots", [new], commit)
    renew_site(lake, new)
    return new
