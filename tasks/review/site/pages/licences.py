"""Under which licences and by whom."""

import polars as pl

from tasks.review.site.blocks import Block, figure, figures, heading, table, words
from tasks.review.site.page import Page, Source

CREATORS = 200


def make(source: Source) -> list[Block]:
    """Licences, sources and creators, each leading to its pictures."""
    images = source.read("images")
    kept = images.join(source.read("labels").select("image_id"), on="image_id", how="semi")
    without = images.filter(pl.col("licence").fill_null("").str.strip_chars() == "").height
    uncredited = images.filter(pl.col("attribution").fill_null("").str.strip_chars() == "").height
    creators = images.group_by("creator").agg(pictures=pl.len(), licences=pl.col("licence").unique().sort())
    ranked = creators.drop_nulls("creator").sort(["pictures", "creator"], descending=[True, False])
    return [
        figures(
            figure(without, "pictures without a licence", "bad" if without else "good"),
            figure(uncredited, "without an attribution", "bad" if uncredited else "good"),
            figure(ranked.height, "creators"),
        ),
        _counted("Licences", "licence", images, kept),
        _counted("Sources", "source", images, kept),
        heading("Creators", f"the {CREATORS} with most pictures" if ranked.height > CREATORS else ""),
        table(
            ["creator", "pictures", "licences"],
            [(name, count, ", ".join(map(str, said))) for name, count, said in ranked.head(CREATORS).iter_rows()],
            ["text", "number", "text"],
            [f"pictures?creator={name}" for name in ranked.head(CREATORS)["creator"]],
            empty="No source named a creator.",
        ),
        words("The attribution of every picture stands under it and goes with it into views, samples and exports."),
    ]


def _counted(title: str, column: str, images: pl.DataFrame, kept: pl.DataFrame) -> Block:
    of_kept = dict(kept.group_by(column).len().iter_rows())
    counted = images.group_by(column).len().sort(["len", column], descending=[True, False])
    rows = [(name or "none", count, of_kept.get(name, 0)) for name, count in counted.iter_rows()]
    links = [f"pictures?{column}={row[0]}" for row in rows]
    return table([title, "pictures", "kept"], rows, ["text", "number", "number"], links)


PAGE = Page(
    id="licences",
    title="Licences",
    group="Trust",
    about="What may be published, and whom to name.",
    reads=("images", "labels"),
    make=make,
    order=30,
)
