"""Pictures that must not be used any more."""

from schemas.tables.base import STRING, TIME, Table

TABLES = (
    Table(
        "withdrawals",
        ("withdrawal_id",),
        {
            "withdrawal_id": STRING,
            "rule": STRING,  # image, creator or licence
            "value": STRING,  # what was withdrawn: an image_id, a creator's name or a licence
            "image_id": STRING,  # a picture the rule met; null in the row of a creator's or licence's rule itself
            "source": STRING,
            "source_id": STRING,
            "sha256": STRING,
            "why": STRING,
            "who": STRING,
            "withdrawn_at": TIME,
        },
        required=("rule", "value", "why", "who", "withdrawn_at"),
        about="pictures that were taken out, and the rules that keep them out",
    ),
)
