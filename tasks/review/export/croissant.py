"""Croissant metadata (1.0) over the Hugging Face files, which dataset search engines and `mlcroissant` read."""

import hashlib
import json
from pathlib import Path
from typing import Any

import polars as pl

from tasks.lake import Lake
from tasks.review.export import hugging_face
from tasks.review.export.rows import Published

NAME = "croissant.json"
_TYPES = {pl.String: "sc:Text", pl.Float64: "sc:Float", pl.Int64: "sc:Integer"}
_CONTEXT: dict[str, Any] = {
    "@language": "en", "@vocab": "https://schema.org/", "citeAs": "cr:citeAs", "column": "cr:column",
    "conformsTo": "dct:conformsTo", "cr": "http://mlcommons.org/croissant/", "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"}, "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/", "examples": {"@id": "cr:examples", "@type": "@json"}, "extract": "cr:extract",
    "field": "cr:field", "fileProperty": "cr:fileProperty", "fileObject": "cr:fileObject", "fileSet": "cr:fileSet",
    "format": "cr:format", "includes": "cr:includes", "isLiveDataset": "cr:isLiveDataset", "jsonPath": "cr:jsonPath",
    "key": "cr:key", "md5": "cr:md5", "parentField": "cr:parentField", "path": "cr:path", "recordSet": "cr:recordSet",
    "references": "cr:references", "regex": "cr:regex", "repeated": "cr:repeated", "replace": "cr:replace",
    "sc": "https://schema.org/", "separator": "cr:separator", "source": "cr:source", "subField": "cr:subField",
    "transform": "cr:transform",
}  # fmt: skip


def write(published: Published, lake: Lake, folder: Path) -> None:
    """The Parquet files, and `croissant.json` with one record set for each of them."""
    hugging_face.write(published, lake, folder)
    files = sorted((folder / "data").glob("*.parquet"))
    record_sets = [_record_set(path.stem, published.rows) for path in files]
    licences = published.rows["licence"].unique().sort().to_list()
    described = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": f"geofix-{published.snapshot_id}",
        "description": "Street-level and satellite pictures with coordinates and address levels, made with geofix.",
        "license": licences[0] if len(licences) == 1 else licences,
        "datePublished": f"{published.snapshot['created_at']:%Y-%m-%d}",
        "version": "1.0.0",
        "url": "https://example.org/",
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": path.stem,
                "name": path.stem,
                "contentUrl": f"data/{path.name}",
                "encodingFormat": "application/x-parquet",
                "sha256": _sha256(path),
            }
            for path in files
        ],
        "recordSet": record_sets,
    }
    (folder / NAME).write_text(json.dumps(described, indent=1, ensure_ascii=False), encoding="utf-8")


def _record_set(file_id: str, rows: pl.DataFrame) -> dict[str, Any]:
    def field(name: str, kind: str, **transform: Any) -> dict[str, Any]:
        source = {"fileObject": {"@id": file_id}, "extract": {"column": name}, **transform}
        return {"@type": "cr:Field", "@id": f"{file_id}/{name}", "name": name, "dataType": kind, "source": source}

    fields = [field("image", "sc:ImageObject", transform={"jsonPath": "bytes"})]
    fields += [field(name, _TYPES.get(type(kind), "sc:Date")) for name, kind in rows.schema.items()]
    return {"@type": "cr:RecordSet", "@id": f"{file_id}-pictures", "name": f"{file_id}-pictures", "field": fields}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
