"""The Delta tables of the lake: columns, keys and what each column means.

Every table carries the same five system columns, filled by the frame, never by a stage:
`stage` and `item_id` say which piece of work wrote the row, `made_from` is the digest of that
work's input and configuration (same digest = nothing to redo), `run_id` and `written_at` say when,
and `tombstone` holds why a row is gone, or null while it lives.
"""

from dataclasses import dataclass

import pyarrow as pa

STRING = pa.string()
INT = pa.int64()
FLOAT = pa.float64()
BOOL = pa.bool_()
TIME = pa.timestamp("us", tz="UTC")
JSON = pa.string()  # a JSON document as text; the column's name ends in _json

SYSTEM_COLUMNS: dict[str, pa.DataType] = {
    "stage": STRING,
    "item_id": STRING,
    "made_from": STRING,
    "run_id": STRING,
    "written_at": TIME,
    "tombstone": STRING,
}


@dataclass(frozen=True)
class Table:
    """A table's contract."""

    name: str
    key: tuple[str, ...]
    columns: dict[str, pa.DataType]
    required: tuple[str, ...] = ()  # never null, besides the key
    about: str = ""
    lives_with: str = ""  # a table whose key is a column here: a row ends when the row it names does

    @property
    def schema(self) -> pa.Schema:
        needed = set(self.key) | set(self.required)
        own = [pa.field(n, t, nullable=n not in needed) for n, t in self.columns.items()]
        return pa.schema(own + [pa.field(n, t) for n, t in SYSTEM_COLUMNS.items()])


_ALL = [
    Table(
        "places",
        ("place_id",),
        {
            "place_id": STRING,
            "country": STRING,  # ISO 3166 alpha-2
            "country_name": STRING,
            "admin1": STRING,
            "cell": STRING,  # south-west corner of the 1 degree cell, such as N48E002
            "lat": FLOAT,
            "lon": FLOAT,
            "weight": FLOAT,  # log(1 + population of the cell), GeoAgent eq. 12
            "probability": FLOAT,  # of drawing this cell inside its country
            "split": STRING,  # train, validation or benchmark; whole cells
            "city_id": STRING,  # of GeoNames; the city columns are null in a plan of the whole Earth
            "city": STRING,
            "city_lat": FLOAT,  # middle of the viewport
            "city_lon": FLOAT,
            "viewport_km": FLOAT,  # side of the square, true to scale, that stands for the city
            "seed": INT,
            "plan_version": STRING,
        },
        required=("country", "lat", "lon", "split"),
        about="where to look",
    ),
    Table(
        "images",
        ("image_id",),
        {
            "image_id": STRING,
            "kind": STRING,  # panorama, photo or satellite
            "place_id": STRING,
            "lat": FLOAT,
            "lon": FLOAT,
            "source": STRING,
            "source_id": STRING,
            "sequence_id": STRING,
            "compass_angle": FLOAT,
            "licence": STRING,
            "creator": STRING,
            "attribution": STRING,
            "captured_at": TIME,
            "fetched_at": TIME,
            "request_url": STRING,  # what was asked, without secrets or signatures
            "http_status": INT,
            "sha256": STRING,
            "extension": STRING,  # jpg or png
            "bytes": INT,
            "width": INT,
            "height": INT,
            "split": STRING,  # of a picture that answers no planned place; else the place's split counts
            "notes": pa.list_(STRING),  # what was odd about it and yet no reason to refuse it
            "etag": STRING,  # the host's mark of the bytes it sent; asked with it again, it says whether they changed
            "source_sha256": STRING,  # of the bytes as they came, before they were assembled and stripped
            "source_bytes": INT,  # how many came
            "prepared": STRING,  # names the settings that made the stored bytes of those that came
            "metadata_json": JSON,  # what else the source said: scenes of a mosaic, corners, camera
        },
        required=("kind", "lat", "lon", "source", "source_id", "licence", "attribution", "sha256"),
        about="what was fetched, under which licence",
    ),
    Table(
        "gaps",
        ("place_id", "kind"),
        {
            "place_id": STRING,
            "kind": STRING,  # of picture: panorama, photo or satellite
            "wanted": INT,
            "got": INT,
            "reason": STRING,
            "evidence_json": JSON,  # how far was searched, what was seen, what was wrong with it
        },
        required=("wanted", "got", "reason"),
        about="pictures that were wanted for a place and could not be had, and why",
    ),
    Table(
        "checks",
        ("subject_id",),
        {
            "subject_id": STRING,  # an image_id, the place_id of a place that got less than was wanted, or the item_id
            # of a satellite picture that was rejected
            "subject": STRING,  # image, place or scene
            "place_id": STRING,
            "status": STRING,  # of an image: same, changed, deleted, lost or unavailable; else look_again
            "news": INT,  # how often something was new so far; whoever depends on the subject is redone when it grows
            "nth": INT,  # how often it was looked at
            "etag": STRING,
            "source_sha256": STRING,
            "checked_at": TIME,
        },
        required=("subject", "place_id", "status", "news", "nth", "checked_at"),
        about="what the source still has, and what it changed",
    ),
    Table(
        "views",
        ("view_id",),
        {
            "view_id": STRING,
            "image_id": STRING,  # the panorama
            "yaw_deg": FLOAT,  # to the right of the panorama's middle, -180 to 180
            "pitch_deg": FLOAT,  # up
            "roll_deg": FLOAT,  # the camera tipped clockwise
            "fov_deg": FLOAT,  # horizontal, between the outer edges of the outermost pixels
            "bearing_deg": FLOAT,  # clockwise from north; null when the panorama has no compass angle
            "width": INT,
            "height": INT,
            "image_sha256": STRING,  # of the panorama it was cut from
            "sha256": STRING,
            "extension": STRING,
            "bytes": INT,
            "licence": STRING,
            "attribution": STRING,
        },
        required=("image_id", "yaw_deg", "pitch_deg", "fov_deg", "width", "height", "sha256", "licence", "attribution"),
        about="perspective views cut from panoramas",
        lives_with="images",
    ),
    Table(
        "labels",
        ("image_id",),
        {
            "image_id": STRING,
            "place_id": STRING,
            "sha256": STRING,
            "lat": FLOAT,
            "lon": FLOAT,
            "country_code": STRING,
            "country": STRING,
            "region": STRING,
            "city": STRING,
            "localizability": STRING,  # localizable; the other classes are rejects
            "localizability_score": FLOAT,
            "judge_model": STRING,
            "judge_reason": STRING,
            "judge_scores_json": JSON,  # the five sub-scores of GeoAgent figure 8, 0 to 10
            "scenes_json": JSON,  # its ten scene categories: yes, no or maybe
            "split": STRING,
            "tier": STRING,
        },
        required=("sha256", "lat", "lon", "split"),
        about="what can be localized, with its address",
    ),
    Table(
        "trajectories",
        ("trajectory_id",),
        {
            "trajectory_id": STRING,
            "image_id": STRING,
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
    Table(
        "attempts",
        ("attempt_id",),
        {
            "attempt_id": STRING,
            "image_id": STRING,
            "policy": STRING,
            "trial": INT,
            "answer": STRING,
            "lat": FLOAT,
            "lon": FLOAT,
            "parse_error": STRING,
            "error_km": FLOAT,
            "tool_calls": INT,
            "prompt_tokens": INT,
            "completion_tokens": INT,
            "cost_usd": FLOAT,
        },
        required=("image_id", "policy", "trial"),
        about="one try of one policy at one image",
    ),
    Table(
        "regimes",
        ("image_id", "policy"),
        {
            "image_id": STRING,
            "policy": STRING,
            "k": INT,
            "threshold_km": pa.list_(FLOAT),
            "passes": pa.list_(INT),  # trials with error below the threshold, per threshold
            "regimes": pa.list_(STRING),  # learnable, mastered or intractable, per threshold
            "kept": BOOL,  # learnable at one threshold at least
            "phase": INT,  # 1: learnable at a phase I threshold; 2: only at a phase II one; else null
        },
        required=("k", "kept"),
        about="Pass@K difficulty",
    ),
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
            "sha256": STRING,
            "licence": STRING,
            "attribution": STRING,
        },
        required=("training_stage", "image_id", "sha256", "licence", "attribution"),
        about="training rows, as the trainer sees them",
    ),
    Table(
        "models",
        ("model_id",),
        {
            "model_id": STRING,
            "training_stage": STRING,
            "parent_id": STRING,
            "snapshot_id": STRING,
            "recipe": STRING,
            "base": STRING,
            "samples": INT,
            "samples_digest": STRING,
            "steps": INT,
            "config_json": JSON,
            "metrics_json": JSON,
            "checkpoint": STRING,  # path inside the lake
        },
        required=("training_stage", "checkpoint"),
        about="what was trained, from what",
    ),
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
    ),
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
            "total": INT,
            "skipped": INT,
            "items_in": INT,
            "kept": INT,
            "rejected": INT,
            "failed": INT,
            "rejects_json": JSON,
            "prompt_tokens": INT,
            "completion_tokens": INT,
            "cost_usd": FLOAT,
            "started_at": TIME,
            "finished_at": TIME,
            "status": STRING,
        },
        required=("status",),
        about="every run of every stage",
    ),
]

TABLES: dict[str, Table] = {table.name: table for table in _ALL}
