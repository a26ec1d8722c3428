"""The page a reviewer reads: one file, no script, nothing fetched from anywhere.

Names, reasons and creators come from the web and from models. The template escapes every value, and the page's own
policy forbids scripts and requests, should that ever fail.
"""

import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import polars as pl
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from schemas.settings.review import ReviewSettings
from tasks.lake import Lake
from tasks.lake.blobs import BlobMissing
from tasks.review import worldmap
from tasks.review.checks import SPLITS, Check
from tasks.review.coverage import coverage
from tasks.review.evidence import Evidence, funnel, tally
from tasks.review.pictures import gallery, reject_groups, scenes

HERE = Path(__file__).parent
COUNTRIES_SHOWN = 14
FAILURES_SHOWN = 20
PLAN = "reports/plan"  # the report of the plan that stands now
_BEGIN, _END = "<!-- decision -->", "<!-- /decision -->"  # between them: the reviewer's decision, which changes later


def report_path(snapshot_id: str) -> str:
    """Where the report lies inside the lake."""
    return f"reports/{snapshot_id}/index.html"


def write_report(
    lake: Lake, snapshot: dict[str, Any], evidence: Evidence, checks: list[Check], settings: ReviewSettings
) -> None:
    """Write the snapshot's page, with a copy of the plan's report beside it: the next plan replaces that."""
    plan_files = _copy_plan(lake, snapshot["report"])
    lake.blobs.put(snapshot["report"], render(lake, snapshot, evidence, checks, settings, plan_files).encode())


def restamp(lake: Lake, snapshot: dict[str, Any]) -> None:
    """Put the reviewer's new decision onto a page that exists already."""
    try:
        page = lake.blobs.get(snapshot["report"]).decode()
    except BlobMissing:  # the decision stands in the table; a missing page is made again by the next review
        return
    before, found, rest = page.partition(_BEGIN)
    _, closed, after = rest.partition(_END)
    if found and closed:
        lake.blobs.put(snapshot["report"], (before + _decision(snapshot) + after).encode())


def render(
    lake: Lake,
    snapshot: dict[str, Any],
    evidence: Evidence,
    checks: list[Check],
    settings: ReviewSettings,
    plan_files: Sequence[str] = (),
) -> str:
    """The page as text."""
    images, labels, places = evidence["images"], evidence["labels"], evidence["places"]
    side_px = settings.thumbnail_px
    return (
        _environment()
        .get_template("report.html.jinja")
        .render(
            snapshot=snapshot,
            decision=Markup(_decision(snapshot)),
            css=Markup((HERE / "report.css").read_text("utf-8")),
            counts=json.loads(snapshot["counts_json"]),
            versions=json.loads(snapshot["table_versions_json"]),
            as_of=_newest(images, labels),
            plan_files=plan_files,
            stages=funnel(evidence),
            world=worldmap,
            coverage=coverage(places, images, evidence["gaps"], evidence["rejects"]),
            scenes=scenes(lake, images, places, settings.gallery // 3, side_px),
            dots=worldmap.dots(_points(places, labels)),
            splits=SPLITS,
            by_split=_by_split(images, labels),
            by_country=_by_country(labels),
            gallery=gallery(lake, images, labels, settings.gallery, side_px),
            rejects=reject_groups(lake, evidence["rejects"], images, places, settings.examples_per_reason, side_px),
            failures=evidence["failures"].sort("stage", "item_id").head(FAILURES_SHOWN).to_dicts(),
            checks=checks,
            checks_by_table={
                table: [one for one in checks if one.table == table] for table in dict.fromkeys(c.table for c in checks)
            },
            licences=tally(images, "licence"),
            creators=images["creator"].drop_nulls().n_unique(),
            judges=tally(labels, "judge_model"),
        )
    )


def _decision(snapshot: dict[str, Any]) -> str:
    return _BEGIN + _environment().get_template("decision.html.jinja").render(snapshot=snapshot) + _END


def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def _points(places: pl.DataFrame, labels: pl.DataFrame) -> list[tuple[float, float, str]]:
    """Kept pictures by split, and the places from which none was kept."""
    without = places.join(labels.select("place_id").drop_nulls(), on="place_id", how="anti")
    kept = labels.select("lat", "lon", "split")
    return [*without.select("lat", "lon", split=pl.lit("nothing kept")).iter_rows(), *kept.iter_rows()]


def _by_split(images: pl.DataFrame, labels: pl.DataFrame) -> list[dict[str, Any]]:
    """Kept pictures, places, countries and kinds for each split."""
    rows = labels.join(images.select("image_id", "kind"), on="image_id", how="left")
    found = []
    for split in SPLITS:
        mine = rows.filter(pl.col("split") == split)
        found.append(
            {
                "split": split,
                "pictures": mine.height,
                "panoramas": mine.filter(pl.col("kind") == "panorama").height,
                "photos": mine.filter(pl.col("kind") == "photo").height,
                "places": mine["place_id"].n_unique(),
                "countries": mine["country_code"].drop_nulls().n_unique(),
                "score": mine["localizability_score"].mean(),
            }
        )
    return found


def _by_country(labels: pl.DataFrame) -> dict[str, Any]:
    """Kept pictures by country and split, the largest countries first."""
    counted = labels.group_by("country").agg(
        pl.len().alias("pictures"), *((pl.col("split") == split).sum().alias(split) for split in SPLITS)
    )
    rows = counted.sort(["pictures", "country"], descending=[True, False])
    return {"rows": rows.head(COUNTRIES_SHOWN).to_dicts(), "more": max(rows.height - COUNTRIES_SHOWN, 0)}


def _newest(images: pl.DataFrame, labels: pl.DataFrame) -> str:
    """When the data was last written."""
    moments = [*images["written_at"].drop_nulls(), *labels["written_at"].drop_nulls()]
    return f"{max(moments):%Y-%m-%d %H:%M} UTC" if moments else ""


def _copy_plan(lake: Lake, page: str) -> list[str]:
    """Copy the plan's map and tables into the page's folder; returns their names, the map first."""
    names = [PurePosixPath(blob.key).name for blob in lake.blobs.list(PLAN) if blob.key.endswith((".png", ".csv"))]
    folder = PurePosixPath(page).parent / "plan"
    for name in names:
        lake.blobs.put(str(folder / name), lake.blobs.get(f"{PLAN}/{name}"))
    return sorted(names, key=lambda name: (not name.endswith(".png"), name))
