"""Planned places that gave no picture, and why."""

import polars as pl

from tasks.review.site.blocks import Block, table
from tasks.review.site.page import Page, Source
from tasks.review.site.words import evidence, meaning, place_name

MOST = 2000


def make(source: Source) -> list[Block]:
    """Rejects that are no pictures, by reason and country."""
    pictures = source.read("images").select("image_id")
    rejects = source.read("rejects").join(pictures, left_on="item_id", right_on="image_id", how="anti")
    rejects = rejects.filter(pl.col("stage").is_in([one["stage"] for one in source.counts.get("stages", [])]))
    places = source.read("places").select("place_id", "country_name", "admin1", "lat", "lon")
    rows = rejects.join(places, left_on="item_id", right_on="place_id", how="left")
    rows = rows.sort("reason", "country_name", "item_id", nulls_last=True).head(MOST)
    return [
        table(
            ["where", "stage", "why", "evidence"],
            [
                (
                    place_name(row["admin1"], row["country_name"]) or row["item_id"],
                    row["stage"],
                    meaning(row["reason"]),
                    evidence(row["evidence_json"]),
                )
                for row in rows.to_dicts()
            ],
            empty="Every planned place gave a picture.",
        )
    ]


PAGE = Page(
    id="places",
    title="Places without pictures",
    group="Pictures",
    about="What was looked for and not found.",
    reads=("images", "places", "rejects", "snapshots"),
    make=make,
    order=20,
)
