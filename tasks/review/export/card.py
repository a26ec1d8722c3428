"""The dataset card: what is in it, under which licences, how it was made, and how to load it."""

import json

import polars as pl

from tasks.review.export.rows import Published
from tasks.runtime.identity import code_version

# Hugging Face's identifiers of the licences that the sources have.
_HUB_LICENCES = {"CC BY-SA 4.0": "cc-by-sa-4.0", "CC BY 4.0": "cc-by-4.0", "CC0": "cc0-1.0", "CC0 1.0": "cc0-1.0"}

LOAD = {
    "hf": 'from datasets import load_dataset\n\nrows = load_dataset("parquet", data_dir="data")',
    "webdataset": 'import webdataset\n\nrows = webdataset.WebDataset("train-000000.tar").decode("pil")',
    "geoparquet": 'import geopandas\n\nrows = geopandas.read_parquet("pictures.parquet")',
    "croissant": 'import mlcroissant\n\nrows = mlcroissant.Dataset("croissant.json")',
}


def card(published: Published, form: str) -> str:
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
    parts.append(_table(licences))
    parts.append(
        "\nEvery row has `licence` and `attribution`; `ATTRIBUTION.csv` lists them by picture. Who publishes a picture "
        "publishes its attribution with it.\n"
    )
    parts.append("## Countries\n")
    parts.append(
        _table(rows.group_by("country").len("pictures").sort("pictures", "country", descending=[True, False]).head(20))
    )
    parts.append("\n## Loading\n\n```python\n" + LOAD[form] + "\n```\n")
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


def _table(rows: pl.DataFrame) -> str:
    lines = ["| " + " | ".join(rows.columns) + " |", "|" + "---|" * rows.width]
    lines += ["| " + " | ".join("" if v is None else f"{v:,}" if isinstance(v, int) else str(v) for v in row) + " |"
              for row in rows.iter_rows()]  # fmt: skip
    return "\n".join(lines)
