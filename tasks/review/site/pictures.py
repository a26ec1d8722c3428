"""One row for each picture: what galleries filter by, what the map shows, what distributions count."""

import json
from typing import Any

import polars as pl

from tasks.review.site.page import Source

STATUSES = ("kept", "rejected", "not judged")
_SCHEMA: dict[str, Any] = {
    "image_id": pl.String, "kind": pl.String, "status": pl.String, "reason": pl.String, "reject_stage": pl.String,
    "country": pl.String, "region": pl.String, "city": pl.String, "split": pl.String, "score": pl.Float64,
    "categories": pl.List(pl.String), "licence": pl.String, "creator": pl.String, "source": pl.String,
    "taken": pl.String, "lat": pl.Float64, "lon": pl.Float64, "tier": pl.String, "said": pl.String,
}  # fmt: skip


def picture_rows(source: Source) -> pl.DataFrame:
    """Every live picture of the snapshot, sorted by country and id; made once for all pages."""
    return source.once("picture rows", _picture_rows)


def _picture_rows(source: Source) -> pl.DataFrame:
    images, labels, places = source.read("images"), source.read("labels"), source.read("places")
    rejects = source.read("rejects").join(images.select("image_id"), left_on="item_id", right_on="image_id", how="semi")
    refused = rejects.sort("written_at").group_by("item_id", maintain_order=True).last()
    judged = source.read("judgements")
    verdicts = judged.select("image_id", "scenes_json", judge_score="score", judge_said="reason").unique(
        "image_id", keep="last", maintain_order=True
    )
    of_label = labels.select(
        "image_id", "country", "region", "city", "tier", "judge_reason", "localizability_score",
        label_split="split", labelled=pl.lit(True),
    )  # fmt: skip
    of_place = places.select("place_id", "country_name", "admin1", place_split="split").unique("place_id")
    rows = (
        images.join(of_label, on="image_id", how="left")
        .join(of_place, on="place_id", how="left")
        .join(
            refused.select("item_id", "reason", reject_stage="stage"),
            left_on="image_id",
            right_on="item_id",
            how="left",
        )
        .join(verdicts, on="image_id", how="left")
    )
    status = (
        pl.when(pl.col("labelled")).then(pl.lit("kept"))
        .when(pl.col("reason").is_not_null()).then(pl.lit("rejected"))
        .otherwise(pl.lit("not judged"))
    )  # fmt: skip
    rows = rows.join(_categories(verdicts["scenes_json"]), on="scenes_json", how="left").with_columns(
        status=status,
        country=pl.coalesce("country", "country_name"),
        region=pl.coalesce("region", "admin1"),
        split=pl.coalesce("label_split", "place_split", "split"),
        score=pl.coalesce("localizability_score", "judge_score"),
        said=pl.coalesce("judge_reason", "judge_said"),
        taken=pl.col("captured_at").dt.strftime("%Y-%m-%d"),
        categories=pl.col("categories").fill_null(pl.lit([], pl.List(pl.String))),
    )
    return rows.select(pl.col(name).cast(dtype) for name, dtype in _SCHEMA.items()).sort(
        "country", "image_id", nulls_last=True
    )


def reason_link(source: Source, reason: str) -> str:
    """The place in the site that shows what was rejected for a reason: pictures, or places without any."""
    mine = source.read("rejects").filter(pl.col("reason") == reason)
    of_pictures = mine.join(source.read("images"), left_on="item_id", right_on="image_id", how="semi").height
    return f"pictures?reason={reason}" if of_pictures else "places"


def _categories(texts: pl.Series) -> pl.DataFrame:
    """Scene categories the judge is sure of, by the text that names them: a few texts serve all pictures."""
    known = texts.drop_nulls().unique().to_list()
    categories = [
        sorted(name.replace("_", " ") for name, verdict in json.loads(text or "{}").items() if verdict == "yes")
        for text in known
    ]
    return pl.DataFrame(
        {"scenes_json": known, "categories": categories},
        schema={"scenes_json": pl.String, "categories": pl.List(pl.String)},
    )


def columns_of(rows: pl.DataFrame) -> dict[str, Any]:
    """Rows as columns, repeated texts as numbers into a list of values: a quarter of the bytes."""
    coded = ("kind", "status", "reason", "country", "region", "city", "split", "licence", "creator", "source", "tier")
    columns: dict[str, Any] = {}
    for name in rows.columns:
        column = rows[name]
        if name in coded:
            values = column.drop_nulls().unique().sort()
            at = column.replace_strict(values, range(len(values)), default=-1, return_dtype=pl.Int64)
            columns[name] = {"values": values.to_list(), "at": at.to_list()}
        elif column.dtype == pl.Float64:
            columns[name] = column.round(5).to_list()
        else:
            columns[name] = column.to_list()
    return columns
