"""The contracts of the tables, checked by Great Expectations.

What Great Expectations cannot say about one column is computed first, in Polars, as a column of true and false.
"""

from typing import Any

import polars as pl

from schemas.errors import LakeError
from schemas.settings.review import ReviewSettings
from schemas.tables import TABLES
from tasks.lake.image_store import ImageStore
from tasks.review.evidence import Evidence, funnel, unfinished
from tasks.review.point_checks import address_agrees, month_in_line
from tasks.review.suites import Check, expectations, validate

_HELD_TO_CONTRACT = ("places", "images", "labels")
# Columns of true and false that are computed for the review, and what a true one says.
_HOLDS = {
    "places": {"cell_in_one_split": "no cell lies in two splits"},
    "images": {
        "place_known": "every image answers a known place",
        "panorama_is_2_to_1": "a panorama is twice as wide as high",
        "licence_given": "no licence is blank",
        "month_in_line": "no month of capture holds far more pictures than the months around it",
    },
    "labels": {
        "country_named": "country is never missing",
        "localizable": "localizability is localizable, where a judge was asked",
        "there_once": "no picture is there twice",
        "image_known": "every label belongs to a live image",
        "same_bytes": "label and image name the same bytes",
        "same_point": "label and image stand at the same point",
        "split_of_place": "an image's split is its place's, or its own where it answers none",
        "sha256_in_one_split": "no picture leaks between splits",
        "sequence_in_one_split": "no sequence leaks between splits",
        "country_of_point": "a label's country is the one its point lies in",
        "address_of_point": "a label's region or city is that of its point, by whatever name",
    },
    "runs": {"accounted": "in = kept + rejected + failed in every finished run"},
    "files": {"intact": "a stored picture's bytes match its sha256"},
}


def run_checks(evidence: Evidence, store: ImageStore, settings: ReviewSettings) -> list[Check]:
    """Every check, in the order of the contracts."""
    frames = checked_frames(evidence, store, settings)
    return [check for table, rows in frames.items() for check in validate(table, rows, _contract(table, settings))]


def checked_frames(evidence: Evidence, store: ImageStore, settings: ReviewSettings) -> dict[str, pl.DataFrame]:
    """The frames that are checked: tables with the columns their contract needs, and what follows from several.

    Photos that were ingested answer no place: without a plan there is none to check.
    """
    places, images, labels, runs = (evidence[name] for name in ("places", "images", "labels", "runs"))
    of_place = places.select("place_id", place_split="split").unique("place_id")
    of_image = images.select(
        "image_id",
        "source",
        "sequence_id",
        image_sha256="sha256",
        image_lat="lat",
        image_lon="lon",
        image_split="split",
        published=pl.col("purpose").is_not_null(),
    ).unique("image_id")
    label = labels.join(of_place, on="place_id", how="left").join(of_image, on="image_id", how="left")
    of_place_or_own = pl.when(pl.col("place_id").is_null()).then("image_split").otherwise("place_split")
    published = pl.col("published").fill_null(False)
    same_point = (pl.col("lat") == pl.col("image_lat")) & (pl.col("lon") == pl.col("image_lon"))
    frames = {
        "places": places.with_columns(
            # split is decided by whole cells; a cell in two splits would put neighbours into both
            cell_in_one_split=(pl.col("split").n_unique().over("cell") == 1) | pl.col("cell").is_null(),
        ),
        "images": images.with_columns(
            place_known=pl.col("place_id").is_in(places["place_id"].implode()) | pl.col("place_id").is_null(),
            panorama_is_2_to_1=(pl.col("kind") != "panorama") | (pl.col("width") == 2 * pl.col("height")),
            licence_given=pl.col("licence").str.strip_chars() != "",
            month_in_line=month_in_line(images),
        ),
        "labels": label.with_columns(
            # A published set stays whole, with what it has at sea and twice.
            country_named=pl.col("country").is_not_null() | published,
            localizable=(pl.col("localizability") == "localizable").fill_null(True) | published,
            there_once=(pl.len().over("sha256", "published") == 1) | published,
            image_known=pl.col("image_sha256").is_not_null(),
            same_bytes=(pl.col("sha256") == pl.col("image_sha256")).fill_null(False),
            same_point=same_point.fill_null(False),
            split_of_place=(pl.col("split") == of_place_or_own).fill_null(False),
            sha256_in_one_split=pl.col("split").n_unique().over("sha256") == 1,
            sequence_in_one_split=pl.col("sequence_id").is_null()
            | (pl.col("split").n_unique().over("source", "sequence_id") == 1),
            **address_agrees(label).to_dict(),
        ),
        "runs": runs.filter(pl.col("status").str.starts_with("done")).with_columns(
            accounted=(pl.col("items_in") == pl.col("kept") + pl.col("rejected") + pl.col("failed"))
            & (pl.col("total") == pl.col("skipped") + pl.col("items_in")),
        ),
        "stages": _stages(evidence, settings),
        "files": _files(images, store, settings.verify_files),
    }
    planned = places.height or images["place_id"].count() or "plan" in runs["stage"]
    return frames if planned else {name: rows for name, rows in frames.items() if name != "places"}


def _stages(evidence: Evidence, settings: ReviewSettings) -> pl.DataFrame:
    """What is wrong with each stage, in words; empty where nothing is."""
    rows = [
        {
            "lost": f"{step.stage}: {step.items_in:,} in, {step.items_in - step.lost:,} found" if step.lost else "",
            "failed": f"{step.stage}: {step.failed:,} of {step.items_in:,}"
            if step.failed > settings.max_failed_share * step.items_in
            else "",
            "missing": "",
        }
        for step in funnel(evidence)
    ]
    rows += [{"lost": "", "failed": "", "missing": text} for text in unfinished(evidence["runs"])]
    return pl.DataFrame(rows, schema=dict.fromkeys(("lost", "failed", "missing"), pl.String))


def _files(images: pl.DataFrame, store: ImageStore, limit: int) -> pl.DataFrame:
    """Stored pictures read back, evenly spread over the sorted hashes when there are more than the limit."""
    wanted = images.select("sha256", "extension").unique().sort("sha256", "extension")
    if wanted.height > limit:
        wanted = wanted.gather_every(-(-wanted.height // limit)) if limit else wanted.clear()

    def intact(row: dict[str, Any]) -> bool:
        try:
            store.read(row["sha256"], row["extension"])
        except LakeError:
            return False
        return True

    state = [intact(row) for row in wanted.to_dicts()]
    return wanted.with_columns(pl.Series("intact", state, dtype=pl.Boolean))


def _contract(name: str, settings: ReviewSettings) -> list[Any]:
    """The table's own contract, where it has one, and what the review demands besides."""
    from great_expectations import expectations as gx

    def holds(column: str, text: str, value: Any = True) -> Any:
        return gx.ExpectColumnValuesToBeInSet(column=column, value_set=[value], meta={"says": text})

    own: list[Any] = []
    if name in _HELD_TO_CONTRACT:
        own = [gx.ExpectTableRowCountToBeBetween(min_value=1, meta={"says": "there is at least one row"})]
        own += expectations(TABLES[name])
    if name == "stages":
        own.append(holds("lost", "in = kept + rejected + failed over all runs: no row is lost", ""))
        own.append(holds("failed", f"at most {settings.max_failed_share:.0%} of what a stage was given failed", ""))
        own.append(holds("missing", "every stage has finished, with all that came before it as its input", ""))
    return own + [holds(column, text) for column, text in _HOLDS.get(name, {}).items()]
