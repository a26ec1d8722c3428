"""Pictures whose rows stand in the table, and whose files are no longer in the store."""

import os

import polars as pl

from schemas.errors import LakeError
from tasks.lake.image_store import ImageStore


def is_lost(images: pl.DataFrame, store: ImageStore) -> pl.Series:
    """Of each row (`sha256`, `extension`) whether its file is missing. Folders are listed, no file is looked up."""
    lost = [False] * images.height
    shas, extensions = images["sha256"].to_list(), images["extension"].to_list()
    start, held = None, frozenset[str]()
    for row in sorted(range(len(shas)), key=shas.__getitem__):  # so that only one folder's names are held at a time
        if shas[row][:2] != start:
            start, held = shas[row][:2], _names(store.path(shas[row], extensions[row]).parent)
        lost[row] = f"{shas[row]}.{extensions[row]}" not in held
    return pl.Series("lost", lost, dtype=pl.Boolean)


def _names(folder: os.PathLike[str]) -> frozenset[str]:
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries)
    except FileNotFoundError:
        return frozenset()
    except OSError as error:  # what cannot be looked at is not lost
        raise LakeError(f"image store '{folder}' cannot be read: {error.strerror or error}") from error
