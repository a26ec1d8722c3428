"""Parquet with embedded pictures, as the Hugging Face `datasets` library reads and the Hub shows it."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.lake import Lake
from tasks.review.export.rows import Published, file_name, pictures

SHARD_BYTES = 400_000_000
ROW_GROUP = 100  # the Hub's viewer reads row groups whole
_VALUES = {"String": "string", "Float64": "float64", "Int64": "int64"}  # Polars' names of types, and Arrow's
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write(published: Published, lake: Lake, folder: Path) -> None:
    """`data/SPLIT-00000-of-00002.parquet` and so on."""
    (folder / "data").mkdir()
    schema = _schema(published.rows)
    for split in published.splits:
        shards = _shards(lake, published.split(split))
        for number, rows in enumerate(shards):
            path = folder / "data" / f"{split}-{number:05d}-of-{len(shards):05d}.parquet"
            with pq.ParquetWriter(path, schema, compression="zstd") as writer:
                for part in rows.iter_slices(ROW_GROUP):
                    embedded = [{"bytes": data, "path": file_name(row)} for row, data in pictures(lake, part)]
                    columns = part.to_arrow().select(schema.names[1:]).cast(pa.schema(list(schema)[1:]))
                    image = pa.array(embedded, _IMAGE)
                    writer.write_table(pa.Table.from_arrays([image, *columns.columns], schema=schema))


def _shards(lake: Lake, rows: pl.DataFrame) -> list[pl.DataFrame]:
    """The rows in parts whose pictures are about SHARD_BYTES together."""
    sizes = [
        found.size if (found := lake.blobs.find(lake.images.key(sha256, extension))) else 0
        for sha256, extension in rows.select("sha256", "extension").iter_rows()
    ]
    number = pl.Series("shard", sizes, dtype=pl.Int64).cum_sum() // SHARD_BYTES
    return [part.drop("shard") for part in rows.with_columns(number).partition_by("shard", maintain_order=True)]


def _schema(rows: pl.DataFrame) -> pa.Schema:
    """Arrow's types, and in the metadata the features by which `datasets` knows that `image` is a picture."""
    fields = [pa.field("image", _IMAGE)]
    features: dict[str, Any] = {"image": {"_type": "Image"}}
    for name, kind in rows.schema.items():
        if isinstance(kind, pl.Datetime):
            fields.append(pa.field(name, pa.timestamp("us", "UTC")))
            features[name] = {"dtype": "timestamp[us, tz=UTC]", "_type": "Value"}
        else:
            value = _VALUES[str(kind)]
            fields.append(pa.field(name, getattr(pa, value)()))
            features[name] = {"dtype": value, "_type": "Value"}
    return pa.schema(fields, metadata={"huggingface": json.dumps({"info": {"features": features}})})
