"""All pictures, with filters and search."""

from tasks.review.site.blocks import Block
from tasks.review.site.page import Files, Page, Source
from tasks.review.site.pictures import columns_of, picture_rows
from tasks.review.site.words import meaning

ROWS = 10_000  # in a file


def make(source: Source) -> list[Block]:
    """The gallery; its rows come in files of their own."""
    count = source.read("images").height
    reasons = source.counts.get("rejects_by_reason", {})
    return [
        {
            "block": "gallery",
            "chunks": -(-count // ROWS),
            "count": count,
            "meanings": {reason: meaning(reason) for reason in reasons},
        }
    ]


def files(source: Source) -> Files:
    rows = picture_rows(source).drop("reject_stage")
    for number, part in enumerate(rows.iter_slices(ROWS)):
        yield f"pictures-{number}", columns_of(part)


PAGE = Page(
    id="pictures",
    title="All pictures",
    group="Pictures",
    about="Every picture, kept or rejected. Filter, search, open one for its whole history.",
    reads=("images", "labels", "places", "rejects", "judgements"),
    make=make,
    files=files,
    order=0,
)
