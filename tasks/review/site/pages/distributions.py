"""Histograms of what is kept."""

import polars as pl

from tasks.review.site.blocks import Block, bars, table, words
from tasks.review.site.drift import drifts, values_of
from tasks.review.site.page import Page, Source
from tasks.review.site.pictures import picture_rows

MOST = 24
SHOWN = (
    ("Countries", "country"),
    ("Judge's score", "score"),
    ("Scene categories", "categories"),
    ("Year taken", "taken"),
    ("Month taken", "month"),
    ("Kind of picture", "kind"),
    ("Source", "source"),
)
SPLITS = ("train", "validation", "benchmark")


def make(source: Source) -> list[Block]:
    """One picture for each distribution, by split, then how far each moved since the last approved snapshot."""
    rows = picture_rows(source).filter(pl.col("status") == "kept")
    if rows.is_empty():
        return [words("Nothing was kept.", "muted")]
    blocks = [_by_split(title, column, rows) for title, column in SHOWN]
    blocks.insert(0, _splits(source, rows))
    for one in drifts(source):
        series = {"last approved": one.before, "now": one.now}
        blocks.append(bars(f"{one.title}: moved {one.moved:.1%} since the last approval", one.labels, series, "share"))
    return blocks


def _by_split(title: str, column: str, rows: pl.DataFrame) -> Block:
    counted = {
        split: dict(values_of(rows.filter(pl.col("split") == split), column).value_counts().iter_rows())
        for split in SPLITS
    }
    names = {str(name) for found in counted.values() for name in found}
    total = {name: sum(found.get(name, 0) for found in counted.values()) for name in names}
    if column in ("score", "taken", "month"):
        ordered = sorted(names, key=int)
    else:
        ordered = sorted(names, key=lambda name: (-total[name], name))
    more = f", the {MOST} largest of {len(ordered)}" if len(ordered) > MOST and column == "country" else ""
    shown = ordered[:MOST] if column == "country" else ordered
    series = {split: [counted[split].get(name, 0) for name in shown] for split in SPLITS}
    return bars(f"{title}{more}", shown, series, "pictures")


def _splits(source: Source, rows: pl.DataFrame) -> Block:
    places = source.read("labels").select("image_id", "place_id")
    joined = rows.join(places, on="image_id", how="left")
    lines = []
    for split in SPLITS:
        mine = joined.filter(pl.col("split") == split)
        score = mine["score"].mean()
        lines.append(
            (
                split,
                mine.height,
                mine.filter(pl.col("kind") == "panorama").height,
                mine.filter(pl.col("kind") == "photo").height,
                mine["place_id"].drop_nulls().n_unique(),
                mine["country"].drop_nulls().n_unique(),
                f"{score:.1f}" if isinstance(score, float) else "–",
            )
        )
    return table(
        ["split", "pictures", "panoramas", "photos", "places", "countries", "mean score"],
        lines,
        ["text", *["number"] * 6],  # type: ignore[list-item]
        [f"pictures?status=kept&split={split}" for split in SPLITS],
    )


PAGE = Page(
    id="distributions",
    title="Distributions",
    group="Data",
    about="What is kept, by split: countries, scores, categories, years.",
    reads=("images", "labels", "places", "rejects", "judgements"),
    make=make,
    order=10,
)
