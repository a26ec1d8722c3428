"""Rows of one key: several versions, of which at most one is live."""

from collections.abc import Sequence

import polars as pl


def newest_versions(rows: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """One row a key, with `tombstone` and `written_at` given: the live one, else the one written last."""
    return rows.sort(pl.col("tombstone").is_null(), "written_at", descending=True, nulls_last=True).unique(
        list(key), keep="first", maintain_order=True
    )
