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
            "status": STRING,  # pending, approved or rejected
            "reviewer": STRING,
            "why": STRING,
            "reviewed_at": TIME,
        },
        required=("table_versions_json", "status"),
        about="a reviewed state of the data",
    ),
)
