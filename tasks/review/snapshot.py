"""A snapshot: the state of the data that a reviewer approves or rejects, with its checks and its site.

Its id follows from the content of the images and labels, so the same content is the same snapshot, and the decision
about it stands, however often the pipeline runs.
"""

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import polars as pl

from schemas.errors import GeofixError
from schemas.settings.review import ReviewSettings
from tasks.lake import Lake
from tasks.review.checks import run_checks
from tasks.review.data_docs import write_data_docs
from tasks.review.evidence import (
    SNAPSHOT_TABLES,
    TABLES,
    counts_json,
    gather,
    report_digest,
    reviewed_only,
    snapshot_id,
    unfinished,
)
from tasks.review.site import build_site, keep_plan, report_path
from tasks.review.site.build import folder_key
from tasks.runtime.runner import Inputs, Kept, Outcome, Resources, Stage, WorkerSetup


@dataclass(frozen=True)
class WorkerContext:
    """What the worker keeps open."""

    lake: Lake
    settings: ReviewSettings


def items(inputs: Inputs, settings: ReviewSettings) -> pl.DataFrame:
    """One item: the state the tables are in."""
    shown = reviewed_only({table: inputs.frame(table) for table in ("rejects", "failures", "runs")})
    snapshot = snapshot_id(inputs.frame("images"), inputs.frame("labels"))
    looks = _looks(inputs.lake, snapshot)
    to_do = [*unfinished(shown["runs"]), *([f"look {looks} at the files"] if looks else [])]
    return pl.DataFrame(
        {
            "id": [snapshot],
            "shown": [report_digest(shown["rejects"], shown["failures"], inputs.frame("gaps"))],
            "unfinished": ["; ".join(to_do)],
        }
    )


def _looks(lake: Lake, snapshot: str) -> int:
    """How often its files have to be looked at again: once more while the last look found damaged pictures.

    No table says that a picture was put back, so nothing else would make the snapshot an item again.
    """
    last = _row(lake, snapshot)
    if last is None:
        return 0
    damaged = any(
        entry["table"] == "files" and not entry["passed"] for entry in json.loads(last["checks_json"] or "[]")
    )
    return (last["looks"] or 0) + damaged


def _row(lake: Lake, snapshot: str) -> dict[str, Any] | None:
    rows = lake.read("snapshots").filter(pl.col("snapshot_id") == snapshot)
    return rows.row(0, named=True) if rows.height else None


def open_context(settings: ReviewSettings, setup: WorkerSetup) -> WorkerContext:
    return WorkerContext(setup.lake, settings)


def work(item: dict[str, Any], context: WorkerContext) -> Outcome:
    """The snapshot's row, after its site is built."""
    evidence = gather(context.lake)
    # Table versions are not part of the item, or a compaction would make work; so they are fixed here and compared.
    if snapshot_id(evidence["images"], evidence["labels"]) != item["id"]:
        raise GeofixError("images or labels were changed while they were under review; run review again")
    checks = run_checks(evidence, context.lake.images, context.settings)
    passed = all(check.passed for check in checks)
    row: dict[str, Any] = {
        "snapshot_id": item["id"],
        "table_versions_json": json.dumps({t: evidence.versions[t] for t in SNAPSHOT_TABLES}, sort_keys=True),
        "counts_json": counts_json(evidence),
        "checks_passed": passed,
        "checks_json": json.dumps([asdict(check) for check in checks], ensure_ascii=False),
        "looks": _looks(context.lake, item["id"]),
        "report": report_path(item["id"]),
        **_decided(context.lake, item["id"], passed),
    }
    keep_plan(context.lake, item["id"])
    if context.settings.data_docs:
        write_data_docs(context.lake, context.lake.blobs.local(folder_key(item["id"])))
    build_site(context.lake, row, context.settings)
    return Kept({"snapshots": [row]})


def _decided(lake: Lake, snapshot: str, passed: bool) -> dict[str, Any]:
    """When this content was first reviewed, and what was decided; pending if nothing, or if it no longer passes."""
    existing = _row(lake, snapshot)
    created = {"created_at": (existing["created_at"] if existing else None) or datetime.now(UTC)}
    columns = ("status", "reviewer", "why", "reviewed_at")
    if existing and (passed or existing["status"] == "rejected" or not existing["checks_passed"]):
        return created | {column: existing[column] for column in columns}
    return created | {"status": "pending", "reviewer": None, "why": None, "reviewed_at": None}


STAGE = Stage(
    name="review",
    reads=TABLES,
    writes=("snapshots",),
    items=items,
    work=work,
    open=open_context,
    resources=Resources(workers=0),  # one item, and this process has imported Great Expectations already
    keeps_history=True,
)

STAGES = [STAGE]
