"""Pictures that must go because of another picture: exact duplicates, and sequences that reach into two splits."""

import polars as pl

# Where two splits share something, the later one keeps it: evaluation data is scarcer than training data.
SPLIT_ORDER = {"train": 0, "validation": 1, "benchmark": 2}


def with_overlaps(images: pl.DataFrame) -> pl.DataFrame:
    """The images with `duplicate_of` (an image_id) and `leaks_into` (a split), null where there is none.

    Needs the columns image_id, sha256, source, sequence_id and split. Of pictures with equal bytes the one of the
    later split stays, then the one with the smallest image_id. A sequence is one drive: its pictures look alike, so
    it may serve one split only.
    """
    rank = pl.col("split").replace_strict(SPLIT_ORDER, default=None, return_dtype=pl.Int64)
    first = pl.col("image_id").sort_by([rank, "image_id"], descending=[True, False]).first().over("sha256")
    highest = rank.max().over("source", "sequence_id")
    names = {number: name for name, number in SPLIT_ORDER.items()}
    leaks = pl.col("sequence_id").is_not_null() & (rank < highest)
    return images.with_columns(
        duplicate_of=pl.when(pl.col("image_id") != first).then(first),
        leaks_into=pl.when(leaks).then(highest.replace_strict(names, default=None, return_dtype=pl.String)),
    )
