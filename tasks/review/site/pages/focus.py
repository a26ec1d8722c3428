"""Where the last evaluations failed, and the places that were planned for it."""

import json

import polars as pl

from tasks.review.site.blocks import Block, heading, number, points, table, words
from tasks.review.site.page import Source, page

MOST = 300


@page(
    "focus",
    "Focus",
    "Data",
    ("places", "labels"),
    about="Training places that were added where an evaluation on the validation split was weak (plan.focus).",
    order=60,
    shown=lambda source: "focus" in source.read("places").columns and source.read("places")["focus"].count() > 0,
)
def focus_page(source: Source) -> list[Block]:
    """Each evaluation with what it added, the factors by country, and a map of added places beside the plain ones."""
    places = source.read("places")
    added = places.drop_nulls("focus")
    labelled = source.read("labels").drop_nulls("place_id").group_by("place_id").agg(pictures=pl.len())
    added = added.join(labelled, on="place_id", how="left").with_columns(pl.col("pictures").fill_null(0))
    plain = places.filter(pl.col("focus").is_null())
    blocks: list[Block] = [
        words(
            f"{number(plain.height)} places are of the plain plan, {number(added.height)} were added. A factor says "
            "how many times as often as in the plain plan a place of this country and climate belt is drawn; what was "
            "planned before stays, and places of validation and benchmark are never added.",
            "muted",
        )
    ]
    lines = []
    for key, first, count, pictures in (
        added.group_by("focus")
        .agg(pl.col("focus_why_json").first(), pl.len().alias("count"), pl.col("pictures").sum())
        .sort("focus")
        .iter_rows()
    ):
        why = json.loads(first or "{}")
        evaluation, _, snapshot = key.partition("|")
        lines.append((why.get("policy", ""), why.get("answers", 0), snapshot, evaluation[:12], count, pictures))
    titles = ["policy", "validation answers", "snapshot", "evaluation", "places added", "labelled pictures"]
    blocks += [
        heading("Evaluations"),
        table(titles, lines, ["text", "number", "code", "code", "number", "number"]),
        heading("Countries", "the most places added first"),
        table(
            ["country", "plain training places", "added", "factor", "labelled pictures of added"],
            _countries(plain, added),
            ["text", "number", "number", "text", "number"],
        ),
    ]
    shown = [(lat, lon, "plain", name, "") for lat, lon, name in plain.select("lat", "lon", "country_name").iter_rows()]
    shown += [
        (lat, lon, "added", f"{name}, factor {factor:.2f}", "")
        for lat, lon, name, factor in added.select("lat", "lon", "country_name", "focus_factor").iter_rows()
    ]
    return [*blocks, points("Planned places", shown)]


def _countries(plain: pl.DataFrame, added: pl.DataFrame) -> list[tuple[str, int, int, str, int]]:
    before = plain.filter(pl.col("split") == "train").group_by("country").len("before")
    rows = added.group_by("country", "country_name").agg(
        pl.len().alias("added"), pl.col("focus_factor").mean(), pl.col("pictures").sum()
    )
    rows = rows.join(before, on="country", how="left").with_columns(pl.col("before").fill_null(0))
    rows = rows.sort(["added", "country"], descending=[True, False]).head(MOST)
    columns = rows.select("country_name", "before", "added", "focus_factor", "pictures").iter_rows()
    return [(name, past, count, f"{factor:.2f}", pictures) for name, past, count, factor, pictures in columns]
