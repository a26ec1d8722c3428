"""Where every row went: in = kept + rejected + failed, stage by stage."""

from typing import Any

import polars as pl

from tasks.review.coverage import coverage
from tasks.review.site.blocks import Block, heading, number, shares, table
from tasks.review.site.page import Page, Source
from tasks.review.site.pictures import reason_link
from tasks.review.site.words import meaning

_DONE = ("done", "done_with_failures")


def make(source: Source) -> list[Block]:
    """The funnel, what the places got, and reasons by stage."""
    stages = [*source.counts.get("stages", []), *_later(source)]
    return [
        shares(
            "At each stage, what comes in is kept, rejected with a reason, or failed and tried again by the next run.",
            [
                (one["stage"], "", [("kept", one["kept"]), ("rejected", one["rejected"]), ("failed", one["failed"])])
                for one in stages
            ],
        ),
        table(
            ["stage", "in", "kept", "rejected", "failed", "rows made", "sum"],
            [
                (*(one[name] for name in ("stage", "items_in", "kept", "rejected", "failed", "rows")), _sum(one))
                for one in stages
            ],
            ["text", "number", "number", "number", "number", "number", "text"],
            empty="No stage has finished a run yet.",
        ),
        *_coverage(source),
        *_reasons(source),
    ]


def _sum(one: dict[str, Any]) -> str:
    off = one["items_in"] - one["kept"] - one["rejected"] - one["failed"]
    return "adds up" if off == 0 else f"off by {off}"


def _later(source: Source) -> list[dict[str, Any]]:
    """The newest finished run of each stage after the review; it counts finished items as kept."""
    runs = source.read("runs").filter(pl.col("snapshot_id").is_not_null() & pl.col("status").is_in(_DONE))
    newest = runs.sort("finished_at").group_by("stage", maintain_order=True).last()
    return [
        {
            "stage": row["stage"],
            "items_in": row["items_in"],
            "kept": row["kept"],
            "rejected": row["rejected"],
            "failed": row["failed"],
            "rows": "",
        }
        for row in newest.filter(pl.col("items_in") > 0).to_dicts()
    ]


def _coverage(source: Source) -> list[Block]:
    found = coverage(*(source.read(name) for name in ("places", "images", "gaps", "rejects")))
    if not found:
        return [
            heading("What the places got"),
            table(["kind"], [], empty="No place has a picture or a reason why not."),
        ]
    rows = []
    for one in found:
        why = [f"{number(count)} {reason.replace('_', ' ')}" for reason, count in one.why_not.items()]
        why += [f"{number(one.open)} not tried yet, or failed and to be tried again"] if one.open else []
        rows.append(
            (
                one.kind,
                one.pictures,
                one.covered,
                one.covered / (one.places or 1),
                one.places - one.covered,
                ", ".join(why),
            )
        )
    return [
        heading("What the places got"),
        table(
            ["kind", "pictures", "places with", "", "without", "why not"],
            rows,
            ["text", "number", "number", "bar", "number", "text"],
            [f"pictures?kind={one.kind}" for one in found],
        ),
    ]


def _reasons(source: Source) -> list[Block]:
    counted = source.read("rejects").group_by("stage", "reason").len()
    rows = counted.sort(["len", "stage", "reason"], descending=[True, False, False]).rows()
    return [
        heading("Rejected, by stage and reason"),
        table(
            ["stage", "reason", "count", "meaning"],
            [(stage, reason, count, meaning(reason)) for stage, reason, count in rows],
            ["text", "code", "number", "text"],
            [reason_link(source, reason) for _, reason, _ in rows],
            empty="Nothing was rejected.",
        ),
    ]


PAGE = Page(
    id="funnel",
    title="Funnel",
    group="Data",
    about="Where every row went.",
    reads=("places", "images", "gaps", "rejects", "runs", "snapshots"),
    make=make,
    order=0,
)
