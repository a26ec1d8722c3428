"""What every stage writes beside its own tables: rejects, failures and its runs."""

from schemas.tables.base import FLOAT, INT, JSON, STRING, TIME, Table

TABLES = (
    Table(
        "rejects",
        ("stage", "item_id"),
        {"reason": STRING, "evidence_json": JSON},
        required=("reason",),
        about="what a stage refused, and why",
    ),
    Table(
        "failures",
        ("stage", "item_id"),
        {"kind": STRING, "message": STRING, "attempts": INT},
        required=("kind",),
        about="what could not be done and is retried on the next run",
        keeps_versions=False,
    ),
    Table(
        "runs",
        ("run_id",),
        {
            "flow_run_id": STRING,
            "config_hash": STRING,
            "config_json": JSON,
            "code_version": STRING,
            "input_versions_json": JSON,
            "output_versions_json": JSON,
            "snapshot_id": STRING,  # what a stage after the review read; null for the stages before it
            "total": INT,
            "skipped": INT,
            "items_in": INT,
            "kept": INT,
            "rejected": INT,
            "failed": INT,
            "redone": INT,  # of items_in: finished before, with other settings, code or input
            "revived": INT,  # of skipped: rows of an earlier run with the same settings, taken up again
            "rejects_json": JSON,
            "requests": INT,  # to models
            "prompt_tokens": INT,
            "completion_tokens": INT,
            "cost_usd": FLOAT,
            "sent_json": JSON,  # to all services: "service kind" -> [requests, bytes received]
            "started_at": TIME,
            "finished_at": TIME,
            "status": STRING,
        },
        required=("status",),
        about="every run of every stage",
    ),
)
