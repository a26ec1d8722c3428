"""A folder of photos as rows: the path of each picture, and the position its camera wrote into it.

Only files that lie in the folder, with all links followed, are opened.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl

from tasks.imaging.tags import read_tags
from tasks.ingest.files import PictureFolder
from tasks.ingest.refusal import REFUSED, Refusal, TableRefused
from tasks.lake.names import KEY_FILE

COLUMNS = ("path", "lat", "lon")
JPEGS = (".jpg", ".jpeg", ".jpe", ".jfif")
PICTURES = (*JPEGS, ".png", ".heic", ".heif", ".hif")
HEAD_BYTES = 1_000_000  # of a JPEG: its metadata stands before its pixels
MOST_BYTES = 64_000_000  # of any other picture


def folder_rows(root: Path) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Rows with the text of COLUMNS, or why they are `refused`; and notes on what was left out."""
    names, others = _pictures_in(root)
    if not names:
        raise TableRefused(f"{root}: the folder holds no picture ({', '.join(PICTURES)})")
    folder, rows = PictureFolder(root), list[dict[str, Any]]()
    for name in names:
        head = folder.head(name, HEAD_BYTES if name.casefold().endswith(JPEGS) else MOST_BYTES)
        if isinstance(head, Refusal):
            rows.append({"refused": asdict(head)})
            continue
        tags = read_tags(head)
        position = {"lat": tags.lat, "lon": tags.lon}
        rows.append({"path": name, **{key: f"{value:.7f}" for key, value in position.items() if value is not None}})
    photos = pl.DataFrame(rows, {**dict.fromkeys(COLUMNS, pl.String), "refused": REFUSED})
    notes = (f"{count:,} files {ending} are left out: JPEG, PNG and HEIC are taken" for ending, count in others)
    return photos.with_row_index("row", 1).cast({"row": pl.Int64}), tuple(notes)


def files_in(root: Path) -> Iterator[Path]:
    """All files of a folder but hidden ones.

    A lake may lie in the very folder that is brought in: its pictures came from elsewhere.
    """
    for at, folders, files in os.walk(root, followlinks=False):
        folders[:] = [name for name in folders if not name.startswith(".") and not Path(at, name, KEY_FILE).exists()]
        yield from (Path(at, file) for file in files if not file.startswith("."))


def _pictures_in(root: Path) -> tuple[list[str], list[tuple[str, int]]]:
    """The relative paths of all pictures, and how many other files there are by their ending, both in order."""
    endings = Counter(file.suffix.casefold() for file in files_in(root))
    names = [file.relative_to(root).as_posix() for file in files_in(root) if file.suffix.casefold() in PICTURES]
    return sorted(names), sorted((ending, n) for ending, n in endings.items() if ending and ending not in PICTURES)
