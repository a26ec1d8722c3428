"""What could not be done and is tried again."""

from tasks.review.site.blocks import Block, commands, table, words
from tasks.review.site.page import Page, Source

MOST = 1000


def make(source: Source) -> list[Block]:
    """Failures by stage and kind, then one by one."""
    failures = source.read("failures").sort("stage", "kind", "item_id")
    if failures.is_empty():
        return [words("Nothing failed.", "good")]
    known = set(source.read("images")["image_id"])
    shown = failures.head(MOST).to_dicts()
    return [
        table(
            ["stage", "kind", "items"],
            failures.group_by("stage", "kind", maintain_order=True).len().rows(),
            ["text", "text", "number"],
        ),
        words("The next run tries them again. Rows lost: none; they are counted as failed in the funnel.", "muted"),
        table(
            ["stage", "item", "kind", "said", "attempts"],
            [(row["stage"], row["item_id"], row["kind"], row["message"] or "", row["attempts"]) for row in shown],
            ["text", "code", "text", "text", "number"],
            [f"picture/{row['item_id']}" if row["item_id"] in known else "" for row in shown],
        ),
        commands(source.command("show failures")),
    ]


PAGE = Page(
    id="failures",
    title="Failures",
    group="Behind it",
    reads=("failures", "images"),
    make=make,
    order=20,
)
