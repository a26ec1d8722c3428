"""The fields of a row, and how their text is read. `./a.jpg` is `a.jpg`, and é has two codes."""

import os
from pathlib import Path

import polars as pl

from tasks.ingest.tags import read_time

# What rows of one id must agree in: all that is stored of them. `country` only helps to check.
STORED = (
    *("path", "url", "lat", "lon", "licence", "creator", "attribution", "captured_at", "compass_angle"),
    *("split", "kind", "sequence"),
)
FIELDS = ("id", *STORED, "country")
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("benchmark", "test", "testing", "eval"), "benchmark"),
}
KINDS = {
    **dict.fromkeys(("photo", "perspective"), "photo"),
    **dict.fromkeys(("panorama", "pano", "equirectangular", "360", "spherical"), "panorama"),
}


def read_degrees(name: str) -> pl.Expr:
    """A field as a finite number; null where it is not one."""
    value = pl.col(name).cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value)


def read_moment(name: str) -> pl.Expr:
    """A field as a moment in ISO 8601; null where it is not one."""
    return pl.col(name).map_elements(lambda text: (t := read_time(text)) and t.isoformat(), pl.String)


def row_id(has_ids: bool, folder: Path) -> pl.Expr:
    """The row's own id; its path where the table has no ids, relative to the picture folder where it lies in it.

    In Unicode's composed form; files made on a Mac often have the other one.
    """
    root = f"{os.path.normpath(folder)}/"

    def shorten(path: str) -> str:
        return os.path.normpath(path.replace("\\", "/")).removeprefix(root)

    text = pl.col("id" if has_ids else "path").str.normalize("NFC")
    return (text if has_ids else text.map_elements(shorten, pl.String)).alias("source_id")
