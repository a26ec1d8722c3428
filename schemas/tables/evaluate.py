"""Answers to the benchmark and their scores."""

from schemas.tables.base import FLOAT, INT, STRING, Table

TABLES = (
    Table(
        "predictions",
        ("evaluation_id", "image_id"),
        {
            "evaluation_id": STRING,
            "image_id": STRING,
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
        ("evaluation_id", "metric"),
        {
            "evaluation_id": STRING,
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
