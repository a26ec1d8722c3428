"""The rows of a snapshot that are published: labelled pictures at its versions, each with licence and attribution."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from schemas.errors import GeofixError
from tasks.lake import Lake
from tasks.runtime.snapshots import Snapshot, decision_text, find_snapshot
from tasks.runtime.stage import Inputs

SPLITS = ("train", "validation", "benchmark")
# What is published of a picture, in this order; `image` stands before them where pixels are embedded.
FROM_LABELS = (
    "image_id", "lat", "lon", "country_code", "country", "region", "city", "localizability_score", "split", "tier",
)  # fmt: skip
FROM_IMAGES = (
    "kind", "width", "height", "captured_at", "compass_angle", "source", "source_id", "sequence_id", "creator",
    "licence", "attribution", "sha256", "extension",
)  # fmt: skip


@dataclass(frozen=True)
class Published:
    """An approved snapshot, ready to be written."""

    snapshot: dict[str, Any]
    rows: pl.DataFrame  # in the order of splits and ids

    @property
    def snapshot_id(self) -> str:
        return str(self.snapshot["snapshot_id"])

    def split(self, name: str) -> pl.DataFrame:
        return self.rows.filter(pl.col("split") == name)

    @property
    def splits(self) -> dict[str, int]:
        """Pictures by split, without empty ones."""
        counted = {name: self.split(name).height for name in SPLITS}
        return {name: count for name, count in counted.items() if count}


def published(lake: Lake, snapshot_id: str) -> Published:
    """The snapshot's pictures; one that is not approved, or a picture without a licence, is refused."""
    row = find_snapshot(lake, snapshot_id)
    if row["status"] != "approved":
        raise GeofixError(f"snapshot {row['snapshot_id']} is {decision_text(row)}: only approved ones are published")
    inputs = Inputs(lake, (versions := json.loads(row["table_versions_json"])), Snapshot(row["snapshot_id"], versions))
    labels, images = inputs.frame("labels"), inputs.frame("images")
    have = [name for name in FROM_LABELS if name in labels.columns]
    rows = labels.select(have).join(images.select("image_id", *FROM_IMAGES), on="image_id", how="left")
    bare = rows.filter(pl.any_horizontal(pl.col("licence", "attribution", "sha256").is_null()))
    if bare.height:
        raise GeofixError(
            f"{bare.height} pictures of snapshot {row['snapshot_id']} have no licence, attribution or bytes, "
            f"{bare['image_id'][0]} among them; run: geofix trace {bare['image_id'][0]}"
        )
    order = pl.col("split").replace_strict({name: n for n, name in enumerate(SPLITS)}, default=len(SPLITS))
    return Published(row, rows.sort(order, "image_id"))


def pictures(lake: Lake, rows: pl.DataFrame) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Each row with its picture's bytes, checked against their digest."""
    for row in rows.iter_rows(named=True):
        yield row, lake.images.read(row["sha256"], row["extension"])


def file_name(row: dict[str, Any]) -> str:
    return f"{row['image_id']}.{row['extension']}"
