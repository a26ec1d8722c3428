"""Pass@K trials and the difficulty they show."""

import pyarrow as pa

from schemas.tables.base import ATTEMPT, BOOL, FLOAT, INT, STRING, Table

TABLES = (
    Table(
        "attempts",
        ("attempt_id",),
        {
            "attempt_id": STRING,
            "image_id": STRING,
            "snapshot_id": STRING,  # the snapshot it was made for; a later one with the same picture takes it over
            "policy": STRING,
            "tools": STRING,  # offered to it, or `none`
            "trial": INT,
            "answer": STRING,
            "lat": FLOAT,
            "lon": FLOAT,
            "parse_error": STRING,
            "error_km": FLOAT,
            "reward": FLOAT,  # of the recipe that is to be trained
            **ATTEMPT,
        },
        required=("image_id", "policy", "trial"),
        about="one try of one policy at one image",
    ),
    Table(
        "regimes",
        ("image_id", "policy"),
        {
            "image_id": STRING,
            "snapshot_id": STRING,  # the snapshot it was made for; a later one with the same picture takes it over
            "policy": STRING,
            "k": INT,
            "threshold_km": pa.list_(FLOAT),
            "passes": pa.list_(INT),  # trials with error below the threshold, per threshold
            "regimes": pa.list_(STRING),  # learnable, mastered or intractable, per threshold
            "learnable": BOOL,  # 0 < Pass@K < K at one threshold at least
            "reward_mean": FLOAT,
            "reward_std": FLOAT,
            "reward_varies": BOOL,  # the rewards inside the group differ: only then is there something to learn
            "kept": BOOL,  # by the rule difficulty.keep
            "reason": STRING,  # why it is not kept
            "phase": INT,  # 1: learnable at a phase I threshold; 2: only at a phase II one; null: not kept
        },
        required=("k", "kept"),
        about="Pass@K difficulty",
    ),
)
