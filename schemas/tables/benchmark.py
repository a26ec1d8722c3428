"""Signed sets of pictures that were newer than models' cut-offs, by month."""

from schemas.tables.base import INT, JSON, STRING, TIME, Table, matches

TABLES = (
    Table(
        "benchmarks",
        ("month",),
        {
            "month": STRING,  # 2026-10
            "snapshot_id": STRING,  # whose labels it was drawn from
            "captured_after": TIME,  # end of the last day that is too old: a cut-off, or the end of the month before
            "captured_until": TIME,  # end of the month
            "pictures": INT,
            "manifest_json": JSON,  # the text that is signed: pictures, cut-offs, counts and proof
            "rejected_json": JSON,  # pictures of these days that are not in it: id, reason, evidence
            "signature": STRING,  # Ed25519, of manifest_json's bytes, in hex digits
            "public_key": STRING,
        },
        required=("snapshot_id", "pictures", "manifest_json", "signature", "public_key"),
        about="monthly benchmarks: pictures newer than models' cut-offs and away from all training, signed",
        expects=(matches("month", r"^\d{4}-\d{2}$", "month is a year and a month"),),
    ),
)
