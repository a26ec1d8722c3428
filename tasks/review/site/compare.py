"""The kept pictures of two snapshots, compared by id."""

from dataclasses import dataclass

import polars as pl

from tasks.review.site.page import Source

COLUMNS = ("sha256", "country", "region", "city", "split")


@dataclass(frozen=True)
class Changes:
    """Rows of labels; of those that changed also the columns before, with the suffix `_old`."""

    added: pl.DataFrame
    removed: pl.DataFrame
    changed: pl.DataFrame
    same: int


def changes(source: Source) -> Changes | None:
    """Against the snapshot that was approved last before this one; None where there is none."""
    if source.before is None:
        return None
    then, now = (one.read("labels").select("image_id", *COLUMNS) for one in (source.before, source))
    both = now.join(then, on="image_id", suffix="_old")
    differs = pl.any_horizontal(pl.col(name).ne_missing(pl.col(f"{name}_old")) for name in COLUMNS)
    changed = both.filter(differs)
    order = ["country", "image_id"]
    return Changes(
        added=now.join(then, on="image_id", how="anti").sort(order, nulls_last=True),
        removed=then.join(now, on="image_id", how="anti").sort(order, nulls_last=True),
        changed=changed.sort(order, nulls_last=True),
        same=both.height - changed.height,
    )
