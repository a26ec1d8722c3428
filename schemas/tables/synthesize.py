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
            "prompt_hash": STRING,  # of every word any model was told
            "writer": STRING,  # who replied: pair, agent, proposals, levels, notes or truth
            "note_id": STRING,  # the row of `notes`, with author and licence, that it was made of; null: of none
            "sample": INT,  # the attempt at this picture, from 0
            "messages_json": JSON,  # OpenAI messages; pictures are named by digest
            "tools_json": JSON,  # the tools that were offered, as in the request
            "calls_json": JSON,  # each call: name, arguments, well_formed, succeeded, error
            "observations": pa.list_(STRING),  # SpotAgent: what the Observer said of each picture, in order
            "view_width": INT,  # pixels of the picture the model saw; boxes are in these
            "view_height": INT,
            "turns": INT,
            "tool_calls": INT,
            "tool_failures": INT,
            "tool_pattern": STRING,  # names of the called tools in order, joined by " > "
            "end_reason": STRING,  # answered, call_budget, turn_budget, …
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
        required=("image_id", "recipe", "messages_json", "verdict", "end_reason"),
        about="trajectories of every recipe and attempt, kept and rejected",
    ),
    Table(
        "derived",
        ("derived_id",),
        {
            "derived_id": STRING,
            "sha256": STRING,  # of the stored file
            "extension": STRING,
            "image_id": STRING,  # the picture it was made of
            "trajectory_id": STRING,  # null: of a conversation in `predictions`
            "kind": STRING,  # view: the picture as the model is shown it; crop: what a zoom showed
        },
        required=("sha256", "extension", "image_id", "kind"),
        about="files that were cut or resized from a picture, beside the perspective views",
        shared=True,  # synthesis and evaluation
    ),
)
