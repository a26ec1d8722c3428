"""Which pictures were added, removed or changed since the last approved snapshot."""

import polars as pl

from tasks.review.site.blocks import Block, heading, pictures, table, words
from tasks.review.site.compare import COLUMNS, changes
from tasks.review.site.page import Page, Source
from tasks.review.site.words import place_name

MOST = 600


def make(source: Source) -> list[Block]:
    """The kept pictures of both snapshots, compared by id."""
    found = changes(source)
    if found is None:
        return [words("This is the first snapshot: there is no approved one to compare it with.", "muted")]
    added, removed = found.added, found.removed
    lines = []
    for row in found.changed.to_dicts():
        told = [
            f"{name}: {row[f'{name}_old']} → {row[name]}" for name in COLUMNS[1:] if row[name] != row[f"{name}_old"]
        ]
        told += ["other bytes"] if row["sha256"] != row["sha256_old"] else []
        lines.append((row["image_id"], ", ".join(told)))
    rejects = dict(source.read("rejects").select("item_id", "reason").iter_rows())
    there = set(source.read("images")["image_id"])
    return [
        heading(f"Added: {added.height:,}", _some(added)),
        pictures("", added.head(MOST)["image_id"].to_list(), _places(added.head(MOST))),
        heading(f"Removed: {removed.height:,}", _some(removed)),
        table(
            ["picture", "was", "why it is gone"],
            [
                (
                    row["image_id"],
                    place_name(row["city"], row["region"], row["country"]),
                    _why(row["image_id"], rejects, there),
                )
                for row in removed.head(MOST).to_dicts()
            ],
            ["picture", "text", "text"],
        ),
        heading(f"Changed: {len(lines):,}"),
        table(["picture", "what"], lines[:MOST], ["picture", "text"]),
    ]


def _why(image_id: str, rejects: dict[str, str], there: set[str]) -> str:
    if image_id in rejects:
        return rejects[image_id].replace("_", " ")
    return "no longer labelled" if image_id in there else "the picture itself has ended"


def _some(rows: pl.DataFrame) -> str:
    return f"the first {MOST}" if rows.height > MOST else ""


def _places(rows: pl.DataFrame) -> list[str]:
    return [place_name(city, country) for city, country in rows.select("city", "country").iter_rows()]


PAGE = Page(
    id="changes",
    title="What changed",
    group="Decision",
    about="Kept pictures against the snapshot that was approved last.",
    reads=("images", "labels", "rejects", "snapshots"),
    make=make,
    order=10,
)
