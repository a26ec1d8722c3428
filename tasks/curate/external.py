"""Evaluation sets of others, from files that the settings name: points, hashes of bytes, perceptual hashes."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from schemas.errors import InputError
from schemas.settings.curate import CurateSettings, DuplicatesSettings
from tasks.curate.leaks import External
from tasks.geo.distance import is_point
from tasks.imaging.decode import BadImage, Encoded
from tasks.imaging.hashes import hash_numbers, marks_of
from tasks.imaging.quality import measure

FIELD = "curate.duplicates.external"
# What the benchmarks in use call their columns.
LAT = ("lat", "latitude", "LAT", "Latitude", "gt_lat", "true_lat")
LON = ("lon", "lng", "longitude", "LON", "Longitude", "gt_lon", "true_lon")
PICTURES = (".jpg", ".jpeg", ".png")


def check(settings: CurateSettings) -> None:
    """Raise what is wrong with the files the settings name, before anything is written."""
    read_external(settings.duplicates.external)


def with_digests(settings: DuplicatesSettings) -> dict[str, Any]:
    """The settings with the content of the files they name: another content is another comparison."""
    return settings.model_dump(mode="json") | {"external": [_digest(Path(name)) for name in settings.external]}


def read_external(names: Sequence[str]) -> list[External]:
    """The sets of all files and folders."""
    return [_folder(Path(name)) if Path(name).is_dir() else _table(Path(name)) for name in names]


def _digest(path: Path) -> str:
    files = sorted(path_below for path_below in path.rglob("*") if path_below.is_file()) if path.is_dir() else [path]
    total = hashlib.sha256()
    for picture_file in files:
        if not picture_file.is_file():
            raise InputError(f"{FIELD}: no file {picture_file}")
        with picture_file.open("rb") as file:
            total.update(picture_file.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def _table(path: Path) -> External:
    if not path.is_file():
        raise InputError(f"{FIELD}: no file {path}; give a CSV or Parquet file, or a folder of pictures")
    try:
        parquet = path.suffix == ".parquet"
        frame = pl.read_parquet(path) if parquet else pl.read_csv(path, infer_schema=False, null_values=[""])
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{FIELD}: {path} cannot be read as a table: {str(error).splitlines()[0][:120]}") from error
    lat, lon = (next((name for name in names if name in frame.columns), None) for names in (LAT, LON))
    if not ((lat and lon) or "sha256" in frame.columns or "phash" in frame.columns):
        raise InputError(
            f"{FIELD}: {path} has columns {', '.join(frame.columns[:8])}; it needs lat and lon, sha256 or phash"
        )
    points = np.empty((0, 2))
    if lat and lon:
        numbers = frame.select(pl.col(lat, lon).cast(pl.Float64, strict=False))
        points = numbers.drop_nulls().to_numpy()
        wrong = frame.height - sum(is_point(*point) for point in points.tolist())
        if wrong:
            raise InputError(f"{FIELD}: {path} has {wrong} rows whose {lat}, {lon} is not a point on Earth")
    return External(
        path.name, points[:, 0], points[:, 1], frozenset(_texts(frame, "sha256")), _hashes(path, _texts(frame, "phash"))
    )


def _texts(frame: pl.DataFrame, name: str) -> list[str]:
    return frame[name].drop_nulls().cast(pl.String).to_list() if name in frame.columns else []


def _hashes(path: Path, texts: list[str]) -> np.ndarray:
    try:
        return hash_numbers(texts)
    except (ValueError, OverflowError):
        raise InputError(f"{FIELD}: {path} has a phash that is not 16 hex digits") from None


def _folder(path: Path) -> External:
    """Pictures themselves: their bytes and hashes; one that cannot be read is named."""
    files = sorted(path_below for path_below in path.rglob("*") if path_below.suffix.lower() in PICTURES)
    if not files:
        raise InputError(f"{FIELD}: the folder {path} holds no picture ({', '.join(PICTURES)})")
    digests, hashes = [], []
    for file in files:
        data = file.read_bytes()
        try:
            hashes.append(marks_of(measure(Encoded.open(data))[1]).phash)
        except BadImage as error:
            raise InputError(f"{FIELD}: {file} is not a picture: {error.kind}") from error
        digests.append(hashlib.sha256(data).hexdigest())
    none = np.empty(0)
    return External(path.name, none, none, frozenset(digests), hash_numbers(hashes))
