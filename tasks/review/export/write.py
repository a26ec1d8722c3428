"""Writes a snapshot to a folder in one of the formats, with a card; whole, or not at all."""

import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import InputError
from tasks.lake import Lake
from tasks.review.export import croissant, geo_parquet, hugging_face, web_dataset
from tasks.review.export.card import attributions, card
from tasks.review.export.rows import Published, published

Write = Callable[[Published, Lake, Path], None]
FORMATS: dict[str, Write] = {
    "hf": hugging_face.write,
    "webdataset": web_dataset.write,
    "geoparquet": geo_parquet.write,
    "croissant": croissant.write,
}


@dataclass(frozen=True)
class Exported:
    """What was written."""

    folder: Path
    form: str
    snapshot_id: str
    pictures: int
    files: int
    bytes: int


def export(lake: Lake, snapshot_id: str, form: str, folder: Path) -> Exported:
    """The snapshot in a new folder. It is written under another name and renamed: a killed export leaves none."""
    if form not in FORMATS:
        raise InputError(f"--as {form}: there is no such format; the formats are {', '.join(FORMATS)}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not empty; choose another folder with --out")
    chosen = published(lake, snapshot_id)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.partial")
    partial.mkdir()
    try:
        FORMATS[form](chosen, lake, partial)
        (partial / "README.md").write_text(card(chosen, form), encoding="utf-8")
        (partial / "ATTRIBUTION.csv").write_bytes(attributions(chosen))
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    return Exported(folder, form, chosen.snapshot_id, chosen.rows.height, len(files), size)
