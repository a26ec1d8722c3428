"""Pictures whose rows stand in the table, and whose files are no longer in the store."""

from pathlib import PurePosixPath

import polars as pl

from tasks.lake.image_store import ImageStore


def is_lost(images: pl.DataFrame, store: ImageStore) -> pl.Series:
    """Of each row (`sha256`, `extension`) whether its file is missing. Folders are listed, no file is looked up."""
    lost = [False] * images.height
    shas, extensions = images["sha256"].to_list(), images["extension"].to_list()
    start, held = None, frozenset[str]()
    for row in sorted(range(len(shas)), key=shas.__getitem__):  # so that only one folder's names are held at a time
        if shas[row][:2] != start:
            start = shas[row][:2]
            held = frozenset(PurePosixPath(blob.key).name for blob in store.list(start))
        lost[row] = f"{shas[row]}.{extensions[row]}" not in held
    return pl.Series("lost", lost, dtype=pl.Boolean)
