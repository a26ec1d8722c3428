"""Trajectories of the agents."""

import pyarrow as pa

from schemas.tables.base import FLOAT, INT, JSON, STRING, Table

TABLES = (
    Table(
        "trajectories",
        ("trajectory_id",),
        {
            "trajectory_id": STRING,
            "image_id": STRING,
            "snapshot_id": STRING,  # the snapshot it was made for; a later one with the same picture takes it over
            "recipe": STRING,
            "sample": INT,
            "messages_json": JSON,
            "tool_calls": INT,
            "tool_failures": INT,
            "answer": STRING,
            "lat": FLOAT,
            "lon": FLOAT,
            "error_km": FLOAT,
            "verdict": STRING,  # kept or rejected
            "reasons": pa.list_(STRING),
            "prompt_tokens": INT,
            "completion_tokens": INT,
            "cost_usd": FLOAT,
        },
        required=("image_id", "recipe", "messages_json", "verdict"),
        about="multi-agent ReAct trajectories, kept and rejected",
    ),
)
