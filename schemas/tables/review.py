"""Snapshots of the data and the decisions of reviewers about them."""

from schemas.tables.base import BOOL, JSON, STRING, TIME, Table

TABLES = (
    Table(
        "snapshots",
        ("snapshot_id",),
        {
            "snapshot_id": STRING,
            "table_versions_json": JSON,
            "counts_json": JSON,
            "checks_passed": BOOL,
            "checks_json": JSON,
            "report": STRING,  # path inside the lake
            "created_at": TIME,  # when this content was first reviewed
            "status": STRING,  # pending, approved or rejected
            "reviewer": STRING,
            "why": STRING,
            "reviewed_at": TIME,
        },
        required=("table_versions_json", "status"),
        about="a reviewed state of the data, with the latest decision about it",
    ),
    Table(
        "decisions",
        ("decision_id",),
        {
            "decision_id": STRING,
            "snapshot_id": STRING,
            "decision": STRING,  # approved or rejected
            "reviewer": STRING,
            "why": STRING,
            "decided_at": TIME,
            "table_versions_json": JSON,  # of the snapshot when it was decided
        },
        required=("snapshot_id", "decision", "reviewer", "decided_at", "table_versions_json"),
        about="every decision about a snapshot; none is ever replaced",
    ),
)
