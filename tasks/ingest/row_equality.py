"""When two rows mean the same, however they are written: `./a.jpg` is `a.jpg`, 48.80 is 48.8, and é has two codes."""

import os
from pathlib import Path

import polars as pl

from tasks.ingest.tags import read_time

FIELDS = (
    *("id", "path", "url", "lat", "lon", "licence", "creator", "attribution", "captured_at", "compass_angle"),
    *("split", "kind", "sequence", "country"),
)
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
    return pl.col(name).map_elements(_iso_moment, pl.String)


def _iso_moment(text: str) -> str | None:
    moment = read_time(text)
    return moment.isoformat() if moment else None


def plain_text(name: str) -> pl.Expr:
    """Text in Unicode's composed form; files made on a Mac often have the other one."""
    return pl.col(name).str.normalize("NFC")


def plain_path(name: str, folder: Path) -> pl.Expr:
    """A path without detours, relative to the picture folder where it lies in it."""
    root = f"{os.path.normpath(folder)}/"

    def shorten(path: str) -> str:
        return os.path.normpath(path).removeprefix(root) if "/" in path else path

    return plain_text(name).str.replace_all("\\", "/", literal=True).map_elements(shorten, pl.String)


def row_id(has_ids: bool, folder: Path) -> pl.Expr:
    """The row's own id; its path where the table has no ids."""
    return (plain_text("id") if has_ids else plain_path("path", folder)).alias("source_id")


def row_content(folder: Path) -> pl.Expr:
    """What rows of one id must agree in: all that is stored of them. `country` is not, it only helps to check."""
    degrees = [
        pl.coalesce((read_degrees(name) + 0.0).cast(pl.String), pl.col(name))  # -0.0 is 0.0
        for name in ("lat", "lon", "compass_angle")
    ]
    words = [
        pl.col(name).str.to_lowercase().replace_strict(known, default=pl.col(name), return_dtype=pl.String)
        for name, known in (("split", SPLITS), ("kind", KINDS))
    ]
    moment = pl.coalesce(read_moment("captured_at"), pl.col("captured_at"))
    texts = [plain_text(name) for name in ("url", "licence", "creator", "attribution", "sequence")]
    parts = [*degrees, plain_path("path", folder), *words, moment, *texts]
    return pl.concat_str([part.fill_null("") for part in parts], separator="\0").alias("content")
