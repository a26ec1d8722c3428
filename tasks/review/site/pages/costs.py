"""What it took: time, requests, tokens and money of every stage."""

import polars as pl

from tasks.review.site.blocks import Block, figure, figures, number, table
from tasks.review.site.page import Page, Source


def make(source: Source) -> list[Block]:
    """The sum of all runs of each stage."""
    runs = source.read("runs").with_columns(
        seconds=(pl.col("finished_at") - pl.col("started_at")).dt.total_milliseconds() / 1000
    )
    sums = runs.group_by("stage").agg(
        pl.len().alias("runs"),
        pl.col("items_in", "seconds", "requests", "prompt_tokens", "completion_tokens", "cost_usd").sum(),
        pl.col("started_at").min(),
    )
    sums = sums.sort("started_at")
    total = sums.select(pl.col("seconds", "requests", "prompt_tokens", "completion_tokens", "cost_usd").sum())
    if sums.is_empty():
        return [table(["stage"], [], empty="No stage has run.")]
    seconds, requests, asked, answered, usd = total.row(0)
    return [
        figures(
            figure(f"{usd:.2f} USD", "for models"),
            figure(requests, "requests to models"),
            figure(asked + answered, "tokens"),
            figure(_time(seconds), "of stages, one after the other"),
        ),
        table(
            ["stage", "runs", "items", "time", "requests", "tokens in", "tokens out", "USD", "USD per item"],
            [
                (
                    row["stage"],
                    row["runs"],
                    row["items_in"],
                    _time(row["seconds"]),
                    row["requests"],
                    row["prompt_tokens"],
                    row["completion_tokens"],
                    f"{row['cost_usd']:.4f}",
                    f"{row['cost_usd'] / row['items_in']:.5f}" if row["items_in"] else "–",
                )
                for row in sums.to_dicts()
            ],
            ["text", *["number"] * 8],  # type: ignore[list-item]
        ),
    ]


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds:.1f} s" if seconds < 90 else f"{seconds / 60:.1f} min" if seconds < 5400 else _hours(seconds)


def _hours(seconds: float) -> str:
    return f"{number(round(seconds / 3600, 1))} h"


PAGE = Page(
    id="costs",
    title="Costs",
    group="Behind it",
    about="Time, requests, tokens and money.",
    reads=("runs",),
    make=make,
    order=10,
)
