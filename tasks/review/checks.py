"""The contracts of the tables, checked by Great Expectations.

What Great Expectations cannot say about one column is computed first, in Polars, as a column of true and false.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from schemas.errors import LakeError
from tasks.lake.image_store import ImageStore
from tasks.review.evidence import Evidence, funnel
from tasks.review.gx_context import gx_context
from tasks.review.point_checks import address_agrees, month_in_line

SPLITS = ["train", "validation", "benchmark"]
KINDS = ["panorama", "photo", "satellite"]
EXAMPLES = 3


@dataclass(frozen=True)
class Check:
    """One expectation about one table, and whether the table meets it."""

    table: str
    says: str
    passed: bool
    checked: int  # rows
    unexpected: int  # rows that do not meet it
    examples: tuple[str, ...] = ()


def run_checks(evidence: Evidence, store: ImageStore, verify_files: int) -> list[Check]:
    """Every check, in the order of the contracts."""
    frames = checked_frames(evidence, store, verify_files)
    return [check for table, rows in frames.items() for check in _validate(table, rows)]


def checked_frames(evidence: Evidence, store: ImageStore, verify_files: int) -> dict[str, pl.DataFrame]:
    """The frames that are checked: tables with the columns their contract needs, and what follows from several."""
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
    ).unique("image_id")
    label = labels.join(of_place, on="place_id", how="left").join(of_image, on="image_id", how="left")
    of_place_or_own = pl.when(pl.col("place_id").is_null()).then("image_split").otherwise("place_split")
    same_point = (pl.col("lat") == pl.col("image_lat")) & (pl.col("lon") == pl.col("image_lon"))
    return {
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
        "stages": pl.DataFrame(
            [{"stage": one.stage, "balances": one.balances} for one in funnel(evidence)],
            schema={"stage": pl.String, "balances": pl.Boolean},
        ),
        "files": _files(images, store, verify_files),
    }


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


def _contracts() -> dict[str, list[Any]]:
    from great_expectations import expectations as gx

    def says(text: str) -> dict[str, str]:
        return {"says": text}

    def key(column: str) -> list[Any]:
        return [
            gx.ExpectColumnValuesToNotBeNull(column=column, meta=says(f"{column} is never missing")),
            gx.ExpectColumnValuesToBeUnique(column=column, meta=says(f"{column} is unique")),
        ]

    def point() -> list[Any]:
        return [
            gx.ExpectColumnValuesToNotBeNull(column="lat", meta=says("lat is never missing")),
            gx.ExpectColumnValuesToNotBeNull(column="lon", meta=says("lon is never missing")),
            gx.ExpectColumnValuesToBeBetween(
                column="lat", min_value=-90, max_value=90, meta=says("lat lies in -90..90")
            ),
            gx.ExpectColumnValuesToBeBetween(
                column="lon", min_value=-180, max_value=180, meta=says("lon lies in -180..180")
            ),
        ]

    def given(column: str) -> Any:
        return gx.ExpectColumnValuesToNotBeNull(column=column, meta=says(f"{column} is never missing"))

    def one_of(column: str, values: list[Any]) -> Any:
        text = f"{column} is {', '.join(map(str, values))}"
        return gx.ExpectColumnValuesToBeInSet(column=column, value_set=values, meta=says(text))

    def form(column: str, regex: str, text: str) -> Any:
        return gx.ExpectColumnValuesToMatchRegex(column=column, regex=regex, meta=says(text))

    def holds(column: str, text: str) -> Any:
        return gx.ExpectColumnValuesToBeInSet(column=column, value_set=[True], meta=says(text))

    def not_empty() -> Any:
        return gx.ExpectTableRowCountToBeBetween(min_value=1, meta=says("there is at least one row"))

    sha256 = r"^[0-9a-f]{64}$"
    return {
        "places": [
            not_empty(),
            *key("place_id"),
            *point(),
            form("country", r"^[A-Z]{2}$", "country is an ISO 3166 alpha-2 code"),
            given("split"),
            one_of("split", SPLITS),
            holds("cell_in_one_split", "no cell lies in two splits"),
        ],
        "images": [
            not_empty(),
            *key("image_id"),
            *point(),
            one_of("kind", KINDS),
            given("sha256"),
            form("sha256", sha256, "sha256 is 64 hex digits"),
            given("licence"),
            given("attribution"),
            form("source_id", r"^\S.*$", "source_id is text"),
            # An id that went through a float looks like 4.546e+18.
            gx.ExpectColumnValuesToNotMatchRegex(
                column="source_id", regex=r"^\d(?:\.\d+)?[eE]\+?\d+$", meta=says("source_id never went through a float")
            ),
            holds("place_known", "every image answers a known place"),
            holds("panorama_is_2_to_1", "a panorama is twice as wide as high"),
            holds("licence_given", "no licence is blank"),
            holds("month_in_line", "no month of capture holds far more pictures than the months around it"),
        ],
        "labels": [
            not_empty(),
            *key("image_id"),
            *point(),
            given("country"),
            given("split"),
            one_of("split", SPLITS),
            one_of("localizability", ["localizable"]),
            gx.ExpectColumnValuesToBeBetween(
                column="localizability_score", min_value=0, max_value=10, meta=says("the judge's score lies in 0..10")
            ),
            gx.ExpectColumnValuesToBeUnique(column="sha256", meta=says("no picture is there twice")),
            holds("image_known", "every label belongs to a live image"),
            holds("same_bytes", "label and image name the same bytes"),
            holds("same_point", "label and image stand at the same point"),
            holds("split_of_place", "an image's split is its place's, or its own where it answers none"),
            holds("sha256_in_one_split", "no picture leaks between splits"),
            holds("sequence_in_one_split", "no sequence leaks between splits"),
            holds("country_of_point", "a label's country is the one its point lies in"),
            holds("address_of_point", "a label's region or city is that of its point, by whatever name"),
        ],
        "runs": [holds("accounted", "in = kept + rejected + failed in every finished run")],
        "stages": [holds("balances", "in = kept + rejected + failed over all runs: no row is lost")],
        "files": [holds("intact", "a stored picture's bytes match its sha256")],
    }


def _validate(table: str, rows: pl.DataFrame) -> list[Check]:
    import great_expectations as gx

    contract = _contracts()[table]
    needed = [name for name in dict.fromkeys(getattr(one, "column", None) for one in contract) if name]
    context = gx_context()
    asset = context.data_sources.add_pandas("lake").add_dataframe_asset(table)
    batch = asset.add_batch_definition_whole_dataframe("live rows").get_batch(
        batch_parameters={"dataframe": rows.select(needed).to_pandas()}
    )
    suite = gx.ExpectationSuite(name=table, expectations=contract)
    results = {one.expectation_config.meta["says"]: one for one in batch.validate(suite).results}
    return [_check(table, one.meta["says"], results[one.meta["says"]], rows.height) for one in contract]


def _check(table: str, says: str, outcome: Any, height: int) -> Check:
    found: Mapping[str, Any] = outcome.result
    values = found.get("partial_unexpected_list") or []
    # A column of true and false has nothing to show; the sentence says it all.
    shown = sorted({str(value)[:80] for value in values if not isinstance(value, bool) and value == value})
    unexpected = int(found.get("unexpected_count") or 0)
    return Check(
        table=table,
        says=says,
        passed=bool(outcome.success),
        checked=height,
        unexpected=unexpected,
        examples=tuple(shown[:EXAMPLES]),
    )
