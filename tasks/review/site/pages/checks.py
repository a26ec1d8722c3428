"""What every table promises, and whether it holds."""

from tasks.review.site.blocks import Block, commands, heading, number, table, words
from tasks.review.site.page import Page, Source


def make(source: Source) -> list[Block]:
    """One table of checks for each table of the lake, failing ones first."""
    checks = sorted(source.checks, key=lambda check: check["passed"])
    failing = sum(not check["passed"] for check in checks)
    blocks: list[Block] = [
        words(f"{failing} of {len(checks)} checks fail.", "bad")
        if failing
        else words(f"All {len(checks)} checks pass.", "good")
    ]
    for name in dict.fromkeys(check["table"] for check in checks):
        mine = [check for check in checks if check["table"] == name]
        rows = [
            (
                "holds" if check["passed"] else "FAILS",
                check["says"],
                number(check["checked"]),
                number(check["unexpected"]),
                ", ".join(check["examples"]),
            )
            for check in mine
        ]
        blocks += [
            heading(name),
            table(["", "promise", "rows", "breaches", "such as"], rows, ["text", "text", "number", "number", "code"]),
        ]
    blocks.append({"block": "files", "items": [["Great Expectations' Data Docs", "data-docs/index.html"]]})
    return [*blocks, commands(source.command("verify"))]


PAGE = Page(
    id="checks",
    title="Checks",
    group="Trust",
    about="Great Expectations holds every table to its contract; a snapshot is made after all suites have run.",
    reads=("snapshots",),
    make=make,
    order=0,
)
