"""Answers to the benchmark and their scores."""

from schemas.tables.base import FLOAT, INT, STRING, Table

TABLES = (
    Table(
        "predictions",
        ("evaluation_id", "image_id"),
        {
            "evaluation_id": STRING,
            "image_id": STRING,
            "snapshot_id": STRING,  # the snapshot it was made for; a later one with the same picture takes it over
            "policy": STRING,
            "answer": STRING,
            "lat": FLOAT,
            "lon": FLOAT,
            "parse_error": STRING,
            "error_km": FLOAT,
            "geoscore": FLOAT,
            "prompt_tokens": INT,
            "completion_tokens": INT,
            "cost_usd": FLOAT,
        },
        required=("policy",),
        about="what was answered",
    ),
    Table(
        "scores",
        ("evaluation_id", "snapshot_id", "metric"),
        {
            "evaluation_id": STRING,
            "snapshot_id": STRING,  # whose pictures were answered: scores of several snapshots stand side by side
            "metric": STRING,
            "policy": STRING,
            "value": FLOAT,
            "low": FLOAT,
            "high": FLOAT,
            "n": INT,
        },
        required=("policy", "n"),
        about="what it was worth, with 95 % bootstrap intervals",
    ),
)
