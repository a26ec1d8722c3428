"""An approved snapshot as others read it: Hugging Face Parquet, WebDataset, GeoParquet or Croissant, with a card."""

import hashlib
import io
import json
import shutil
import tarfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.errors import GeofixError, InputError
from tasks.agent.recording import TOOLS_FILE, Written, write_recording
from tasks.agent.toolbox import PICTURE
from tasks.lake import Commit, Lake
from tasks.runtime.items.identity import code_version, digest, new_run_id
from tasks.runtime.items.withdrawals import is_about
from tasks.runtime.snapshots import Snapshot, decision_text, find_snapshot
from tasks.runtime.stage import Inputs

NEVER = datetime.max.replace(tzinfo=UTC)
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


def read_published(lake: Lake, snapshot_id: str) -> Published:
    """The snapshot's pictures; one that is not approved, or a picture without a licence, is refused."""
    row = find_snapshot(lake, snapshot_id)
    if row["status"] != "approved":
        raise GeofixError(f"snapshot {row['snapshot_id']} is {decision_text(row)}: only approved ones are published")
    inputs = Inputs(lake, (versions := json.loads(row["table_versions_json"])), Snapshot(row["snapshot_id"], versions))
    labels, images = inputs.frame("labels"), inputs.frame("images")
    rows = labels.select(FROM_LABELS).join(images.select("image_id", *FROM_IMAGES), on="image_id", how="left")
    bare = rows.filter(pl.any_horizontal(pl.col("licence", "attribution", "sha256").is_null()))
    if bare.height:
        raise GeofixError(
            f"{bare.height} pictures of snapshot {row['snapshot_id']} have no licence, attribution or bytes, "
            f"{bare['image_id'][0]} among them; run: geofix trace {bare['image_id'][0]}"
        )
    order = pl.col("split").replace_strict({name: n for n, name in enumerate(SPLITS)}, default=len(SPLITS))
    return Published(row, rows.sort(order, "image_id"))


def read_pictures(lake: Lake, rows: pl.DataFrame) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Each row with its picture's bytes, checked against their digest."""
    for row in rows.iter_rows(named=True):
        yield row, lake.images.read(row["sha256"], row["extension"])


def file_name(row: dict[str, Any]) -> str:
    return f"{row['image_id']}.{row['extension']}"


SHARD_BYTES = 400_000_000
ROWS_IN_GROUP = 100  # the Hub's viewer reads row groups whole
_ARROW_TYPES = {"String": "string", "Float64": "float64", "Int64": "int64"}  # Polars' names of types, and Arrow's
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write_hugging_face(published: Published, lake: Lake, folder: Path) -> None:
    """`data/SPLIT-00000-of-00002.parquet` and so on."""
    (folder / "data").mkdir()
    schema = _image_schema(published.rows)
    for split in published.splits:
        shards = _shards(lake, published.split(split))
        for number, rows in enumerate(shards):
            path = folder / "data" / f"{split}-{number:05d}-of-{len(shards):05d}.parquet"
            with pq.ParquetWriter(path, schema, compression="zstd") as writer:
                for part in rows.iter_slices(ROWS_IN_GROUP):
                    embedded = [{"bytes": data, "path": file_name(row)} for row, data in read_pictures(lake, part)]
                    columns = part.to_arrow().select(schema.names[1:]).cast(pa.schema(list(schema)[1:]))
                    image = pa.array(embedded, _IMAGE)
                    writer.write_table(pa.Table.from_arrays([image, *columns.columns], schema=schema))


def _shards(lake: Lake, rows: pl.DataFrame) -> list[pl.DataFrame]:
    """The rows in parts whose pictures are about SHARD_BYTES together."""
    sizes = [
        blob.size if (blob := lake.blobs.find(lake.images.key(sha256, extension))) else 0
        for sha256, extension in rows.select("sha256", "extension").iter_rows()
    ]
    number = pl.Series("shard", sizes, dtype=pl.Int64).cum_sum() // SHARD_BYTES
    return [part.drop("shard") for part in rows.with_columns(number).partition_by("shard", maintain_order=True)]


def _image_schema(rows: pl.DataFrame) -> pa.Schema:
    """Arrow's types, and in the metadata the features by which `datasets` knows that `image` is a picture."""
    fields = [pa.field("image", _IMAGE)]
    features: dict[str, Any] = {"image": {"_type": "Image"}}
    for name, kind in rows.schema.items():
        if isinstance(kind, pl.Datetime):
            fields.append(pa.field(name, pa.timestamp("us", "UTC")))
            features[name] = {"dtype": "timestamp[us, tz=UTC]", "_type": "Value"}
        else:
            value = _ARROW_TYPES[str(kind)]
            fields.append(pa.field(name, getattr(pa, value)()))
            features[name] = {"dtype": value, "_type": "Value"}
    return pa.schema(fields, metadata={"huggingface": json.dumps({"info": {"features": features}})})


def write_web_dataset(published: Published, lake: Lake, folder: Path) -> None:
    """`SPLIT-000000.tar` and so on. The same snapshot gives the same bytes."""
    for split in published.splits:
        number, size, tar = 0, 0, None
        for row, data in read_pictures(lake, published.split(split)):
            if tar is None or size > SHARD_BYTES:
                if tar is not None:
                    tar.close()
                tar = tarfile.open(folder / f"{split}-{number:06d}.tar", "w")  # noqa: SIM115 - closed by the next
                number, size = number + 1, 0
            facts = {name: value for name, value in row.items() if value is not None}
            text = json.dumps(facts, default=str, ensure_ascii=False, sort_keys=True).encode()
            _add_member(tar, file_name(row), data)
            _add_member(tar, f"{row['image_id']}.json", text)
            size += len(data) + len(text)
        if tar is not None:
            tar.close()


def _add_member(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o644
    tar.addfile(member, io.BytesIO(data))


def write_geo_parquet(published: Published, lake: Lake, folder: Path) -> None:
    """`pictures.parquet`, with points in WGS 84."""
    import geopandas

    rows = published.rows.to_pandas()
    points = geopandas.points_from_xy(rows["lon"], rows["lat"])
    geopandas.GeoDataFrame(rows, geometry=points, crs="EPSG:4326").to_parquet(folder / "pictures.parquet", index=False)


_CROISSANT_TYPES = {pl.String: "sc:Text", pl.Float64: "sc:Float", pl.Int64: "sc:Integer"}
_CROISSANT_CONTEXT: dict[str, Any] = {
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


def write_croissant(published: Published, lake: Lake, folder: Path) -> None:
    """The Parquet files, and `croissant.json` with one record set for each of them."""
    write_hugging_face(published, lake, folder)
    files = sorted((folder / "data").glob("*.parquet"))
    record_sets = [_record_set(path.stem, published.rows) for path in files]
    licences = published.rows["licence"].unique().sort().to_list()
    described = {
        "@context": _CROISSANT_CONTEXT,
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
    (folder / "croissant.json").write_text(json.dumps(described, indent=1, ensure_ascii=False), encoding="utf-8")


def _record_set(file_id: str, rows: pl.DataFrame) -> dict[str, Any]:
    def field(name: str, kind: str, **transform: Any) -> dict[str, Any]:
        source = {"fileObject": {"@id": file_id}, "extract": {"column": name}, **transform}
        return {"@type": "cr:Field", "@id": f"{file_id}/{name}", "name": name, "dataType": kind, "source": source}

    fields = [field("image", "sc:ImageObject", transform={"jsonPath": "bytes"})]
    fields += [field(name, _CROISSANT_TYPES.get(type(kind), "sc:Date")) for name, kind in rows.schema.items()]
    return {"@type": "cr:RecordSet", "@id": f"{file_id}-pictures", "name": f"{file_id}-pictures", "field": fields}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Hugging Face's identifiers of the licences that the sources have.
_HUB_LICENCES = {
    **{"CC BY-SA 4.0": "cc-by-sa-4.0", "CC BY 4.0": "cc-by-4.0", "CC0": "cc0-1.0", "CC0 1.0": "cc0-1.0"},
    "etalab-2.0": "etalab-2.0",
}

LOAD = {
    # By name: of file names alone the library guesses three splits, and a benchmark is none of them.
    "hf": 'from datasets import load_dataset\n\nrows = load_dataset("parquet", data_files=FILES)',
    "webdataset": 'import webdataset\n\nrows = webdataset.WebDataset("train-000000.tar").decode("pil")',
    "geoparquet": 'import geopandas\n\nrows = geopandas.read_parquet("pictures.parquet")',
    "croissant": 'import mlcroissant\n\nrows = mlcroissant.Dataset("croissant.json")',
}


def write_tools(published: Published, lake: Lake, services: tuple[str, str], file: Path) -> Written:
    """What these services, and those that are sent parts of pictures, answered to agents about these pictures."""
    image_ids, digests = frozenset(published.rows["image_id"]), frozenset(published.rows["sha256"])

    def is_published(item_id: str, arguments: dict[str, Any]) -> bool:
        return arguments[PICTURE] in digests if PICTURE in arguments else is_about(item_id, image_ids)

    of_texts, of_pictures = services
    written = write_recording(lake.state, of_texts, file, of_pictures, is_published)
    if not written.answers:
        raise GeofixError(
            f"no answer of a tool about snapshot {published.snapshot_id} is kept: record some with "
            "services.tools.mode=record, or export it without --with-tools"
        )
    return written


def dataset_card(published: Published, form: str, tools: Written | None = None) -> str:
    """README.md, with the front matter that the Hub reads where the files are Parquet."""
    rows, snapshot = published.rows, published.snapshot
    licences = rows.group_by("licence").len("pictures").sort("pictures", "licence", descending=[True, False])
    parts = [_front_matter(published, licences) if form in ("hf", "croissant") else ""]
    parts.append(f"# Pictures with places: geofix snapshot {published.snapshot_id}\n")
    counts = ", ".join(f"{count:,} {split}" for split, count in published.splits.items())
    countries = rows["country_code"].drop_nulls().n_unique()
    parts.append(f"{rows.height:,} pictures ({counts}) of {countries} countries, each with coordinates and address.\n")
    parts.append("Splits are separated in space: no cell of the Earth holds pictures of two splits.\n")
    parts.append("## Licences\n")
    parts.append(_markdown_table(licences))
    parts.append(
        "\nEvery row has `licence` and `attribution`; `ATTRIBUTION.csv` lists them by picture. Who publishes a picture "
        "publishes its attribution with it.\n"
    )
    parts.append("## Countries\n")
    parts.append(
        _markdown_table(
            rows.group_by("country").len("pictures").sort("pictures", "country", descending=[True, False]).head(20)
        )
    )
    files = {split: f"data/{split}-*.parquet" for split in published.splits}
    parts.append("\n## Loading\n\n```python\n" + LOAD[form].replace("FILES", json.dumps(files)) + "\n```\n")
    if tools is not None:
        counts = ", ".join(f"{count:,} by {tool}" for tool, count in tools.by_tool.items())
        parts.append("## Recorded tools\n")
        parts.append(
            f"`{TOOLS_FILE}` holds {tools.answers:,} answers ({counts}) of services to agents that were asked about "
            "these pictures. geofix trains with them and asks no service: `services.tools.mode: frozen` and "
            "`services.tools.recording` with this folder. The licences above do not cover these texts, which others "
            f"wrote: their services' terms do. Answers that are pictures are left out ({tools.pictures:,}).\n"
        )
    parts.append("## How it was made\n")
    versions = ", ".join(f"{name} {number}" for name, number in json.loads(snapshot["table_versions_json"]).items())
    parts.append(
        f"Snapshot `{published.snapshot_id}` of {snapshot['created_at']:%Y-%m-%d}, approved by {snapshot['reviewer']}"
        f"{' (' + snapshot['why'] + ')' if snapshot['why'] else ''}. Table versions: {versions}. "
        f"Written by geofix {code_version()}.\n"
    )
    return "\n".join(part for part in parts if part)


def attributions(published: Published) -> bytes:
    """CSV: which picture is under which licence, by whom."""
    return published.rows.select("image_id", "licence", "creator", "attribution").write_csv().encode()


def _front_matter(published: Published, licences: pl.DataFrame) -> str:
    known = {_HUB_LICENCES.get(name, "other") for name in licences["licence"]}
    files = "\n".join(f"  - split: {split}\n    path: data/{split}-*.parquet" for split in published.splits)
    return (
        "---\n"
        f"license: {known.pop() if len(known) == 1 else 'other'}\n"
        "task_categories:\n- image-to-text\n"
        "tags:\n- geolocation\n- street-view\n"
        f"size_categories:\n- {_size(published.rows.height)}\n"
        f"configs:\n- config_name: default\n  data_files:\n{files}\n"
        "---\n"
    )


def _size(count: int) -> str:
    steps = [(1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M")]
    return next((name for most, name in steps if count < most), "1M<n<10M")


def _markdown_table(rows: pl.DataFrame) -> str:
    lines = ["| " + " | ".join(rows.columns) + " |", "|" + "---|" * rows.width]
    lines += ["| " + " | ".join("" if v is None else f"{v:,}" if isinstance(v, int) else str(v) for v in row) + " |"
              for row in rows.iter_rows()]  # fmt: skip
    return "\n".join(lines)


Write = Callable[[Published, Lake, Path], None]
FORMATS: dict[str, Write] = {
    "hf": write_hugging_face,
    "webdataset": write_web_dataset,
    "geoparquet": write_geo_parquet,
    "croissant": write_croissant,
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
    tools: Written | None = None


def export(lake: Lake, snapshot_id: str, form: str, folder: Path, tools_of: tuple[str, str] | None = None) -> Exported:
    """The snapshot in a new folder. It is written under another name and renamed: a killed export leaves none.

    It is registered before its folder has its name: a withdrawal names every copy there may be. With `tools_of`, the
    names of services as `asked_services` has them, their recorded answers go along.
    """
    if form not in FORMATS:
        raise InputError(f"--as {form}: there is no such format; the formats are {', '.join(FORMATS)}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not empty; choose another folder with --out")
    chosen = read_published(lake, snapshot_id)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.partial")
    partial.mkdir()
    try:
        FORMATS[form](chosen, lake, partial)
        tools = write_tools(chosen, lake, tools_of, partial / TOOLS_FILE) if tools_of is not None else None
        (partial / "README.md").write_text(dataset_card(chosen, form, tools), encoding="utf-8")
        (partial / "ATTRIBUTION.csv").write_bytes(attributions(chosen))
        _register(lake, chosen, form, folder)
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    return Exported(folder, form, chosen.snapshot_id, chosen.rows.height, len(files), size, tools)


def _register(lake: Lake, published: Published, form: str, folder: Path) -> None:
    run_id, now = new_run_id("export"), datetime.now(UTC)
    row = {
        "export_id": digest(run_id),
        "snapshot_id": published.snapshot_id,
        "form": form,
        "folder": str(folder.resolve()),
        "pictures": published.rows.height,
        "exported_at": now,
        **{"stage": "review.export", "item_id": published.snapshot_id, "run_id": run_id, "written_at": now},
    }
    lake.append("exports", [row], Commit(run_id, 1, stage="review.export", code_version=code_version()))


@dataclass(frozen=True)
class Copy:
    """An export that holds withdrawn pictures."""

    folder: str
    form: str
    snapshot_id: str
    exported_at: datetime
    pictures: int  # of those that were requested


def exports_of(lake: Lake, image_ids: Sequence[str]) -> list[Copy]:
    """The exports that hold one of these pictures, oldest first."""
    ended = lake.read("withdrawals", columns=["image_id", "withdrawn_at"]).drop_nulls("image_id")
    since = dict(ended.group_by("image_id").agg(pl.col("withdrawn_at").min()).iter_rows())
    exports = []
    for row in lake.read("exports").sort("exported_at").to_dicts():
        version = json.loads(find_snapshot(lake, row["snapshot_id"])["table_versions_json"])["labels"]
        held = lake.read("labels", version, ["image_id"])["image_id"]
        # What had been withdrawn by then was left out.
        mine = [
            image_id
            for image_id in held.filter(held.is_in(list(image_ids)))
            if since.get(image_id, NEVER) >= row["exported_at"]
        ]
        if mine:
            names = ("folder", "form", "snapshot_id", "exported_at")
            exports.append(Copy(**{name: row[name] for name in names}, pictures=len(mine)))
    return exports
