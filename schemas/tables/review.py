"""Snapshots of the data and the decisions of reviewers about them."""

from schemas.tables.base import BOOL, FLOAT, INT, JSON, STRING, TIME, Table, one_of

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
            "looks": INT,  # at its files after the first, which had found damaged pictures
            "report": STRING,  # path inside the lake
            "created_at": TIME,  # when this content was first reviewed
            "status": STRING,  # pending, approved or rejected
            "reviewer": STRING,
            "why": STRING,
            "reviewed_at": TIME,
        },
        required=("table_versions_json", "status"),
        about="a reviewed state of the data, with the latest decision about it",
        expects=(one_of("status", "pending", "approved", "rejected"),),
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
    Table(
        "exports",
        ("export_id",),
        {
            "export_id": STRING,
            "snapshot_id": STRING,
            "form": STRING,  # hf, webdataset, geoparquet or croissant
            "folder": STRING,  # on the machine that wrote it
            "pictures": INT,
            "exported_at": TIME,
        },
        required=("snapshot_id", "form", "folder", "exported_at"),
        about="what was published, so that a withdrawal can name the copies that hold a picture",
    ),
    Table(
        "marks",
        ("mark_id",),
        {
            "mark_id": STRING,  # of image, label and reviewer: a second mark replaces the first
            "image_id": STRING,
            "snapshot_id": STRING,  # whose site it was made in
            "sha256": STRING,  # of the picture that was looked at
            "label": STRING,  # that was looked at: country; region; city
            "mark": STRING,  # right or wrong
            "note": STRING,
            "sampled": BOOL,  # whether the picture was drawn at random; only those say something about all
            "reviewer": STRING,
            "marked_at": TIME,
        },
        required=("image_id", "snapshot_id", "sha256", "label", "mark", "sampled", "reviewer", "marked_at"),
        about="what people noted about single labels",
        expects=(one_of("mark", "right", "wrong"),),
    ),
    Table(
        "notes",
        ("note_id",),
        {
            "note_id": STRING,  # of picture and author: a second text replaces the first
            "image_id": STRING,
            "snapshot_id": STRING,  # whose site it was written in
            "sha256": STRING,  # of the picture that was looked at
            "notes": STRING,  # how its author finds out where the picture was taken
            "author": STRING,
            "licence": STRING,  # under which the author gives the text
            "noted_at": TIME,
        },
        required=("image_id", "snapshot_id", "sha256", "notes", "author", "licence", "noted_at"),
        about="what people wrote about how a place is found, material for chains of thought",
    ),
    Table(
        "guesses",
        ("guess_id",),
        {
            "guess_id": STRING,  # of picture and author: the first guess stands, made before the truth was shown
            "image_id": STRING,
            "snapshot_id": STRING,  # whose site it was made in
            "sha256": STRING,  # of the picture that was looked at
            "lat": FLOAT,
            "lon": FLOAT,
            "error_km": FLOAT,
            "geoscore": FLOAT,
            "why": STRING,  # also a row of `notes`
            "author": STRING,
            "licence": STRING,  # under which the author gives guess and text
            "policy": STRING,  # the agent it was played against
            "agent_km": FLOAT,  # how far off that one was; null: its answer has no point
            "guessed_at": TIME,
        },
        required=("image_id", "snapshot_id", "sha256", "lat", "lon", "error_km", "author", "licence", "guessed_at"),
        about="where people think pictures were taken, guessed before they saw the truth",
    ),
)
