"""Training rows and trained models."""

from schemas.tables.base import FLOAT, INT, JSON, STRING, Table

TABLES = (
    Table(
        "samples",
        ("sample_id",),
        {
            "sample_id": STRING,
            "training_stage": STRING,  # sft, cold_start or grpo
            "snapshot_id": STRING,
            "image_id": STRING,
            "trajectory_id": STRING,
            "phase": INT,  # of GRPO's curriculum: 1 comes before 2; null in the other stages
            "messages_json": JSON,
            "lat": FLOAT,
            "lon": FLOAT,
            "country": STRING,  # the levels some rewards compare
            "region": STRING,
            "city": STRING,
            "sha256": STRING,
            "licence": STRING,
            "attribution": STRING,
        },
        required=("training_stage", "image_id", "sha256", "licence", "attribution"),
        about="training rows, as the trainer sees them",
    ),
    Table(
        "training_steps",
        ("model_id", "kind", "number"),
        {
            "model_id": STRING,
            "kind": STRING,  # step, validation or warning
            "number": INT,  # of its kind, from 0
            "training_stage": STRING,
            "step": INT,  # optimizer steps done by then
            "loss": FLOAT,
            "reward": FLOAT,
            "figures_json": JSON,  # all figures: KL, entropy, lengths, reward by part, Acc@D of a validation …
            "text": STRING,  # of a warning
            "seconds": FLOAT,
            "tokens_per_s": FLOAT,
        },
        required=("training_stage", "kind", "step"),
        about="what each training step and each validation showed",
        shared=True,  # one stage for each kind of training
    ),
    Table(
        "models",
        ("model_id",),
        {
            "model_id": STRING,
            "training_stage": STRING,  # sft, cold_start or grpo, or what else a recipe learns
            "parent_id": STRING,
            "snapshot_id": STRING,
            "recipe": STRING,
            "base": STRING,
            "path": STRING,  # packed, or plain: transformers' own forward pass, slower
            "samples": INT,
            "samples_digest": STRING,
            "steps": INT,
            "config_json": JSON,
            "metrics_json": JSON,
            "checkpoint": STRING,  # path inside the lake
        },
        required=("training_stage", "checkpoint"),
        about="what was trained, from what",
        shared=True,  # one stage for each kind of training
    ),
    Table(
        "swarm_rounds",
        ("swarm_id", "image_id"),
        {
            "swarm_id": STRING,  # follows from the agents and all settings that their answers depend on
            "image_id": STRING,
            "snapshot_id": STRING,
            "sha256": STRING,
            "extension": STRING,
            "election_json": JSON,  # an agent's last answer: 1 right, 0 wrong, 0.5 none
            "links_json": JSON,  # of answerers (rows) to reviewers, after the last round
            "distances_json": JSON,  # kilometres of each agent's last answer; null: it gave none that has a point
            "rounds_json": JSON,  # who answered, was right and reviewed, round by round
            "prompt_tokens": INT,
            "completion_tokens": INT,
        },
        required=("image_id", "sha256", "election_json", "links_json"),
        about="what a swarm's election and links are learned from",
    ),
)
