"""Where every row went, how the kept ones are distributed, what it cost and what failed."""

from typing import Any

import polars as pl

from tasks.review.coverage import coverage
from tasks.review.site.blocks import Block, bars, commands, figure, figures, heading, number, shares, table, words
from tasks.review.site.compare import drifts, values_of
from tasks.review.site.page import Source, page
from tasks.review.site.pictures import picture_rows, reason_link
from tasks.review.site.words import meaning

_DONE = ("done", "done_with_failures")


@page(
    "funnel",
    "Funnel",
    "Data",
    ("places", "images", "gaps", "rejects", "runs", "snapshots"),
    about="Where every row went.",
    order=0,
)
def funnel_page(source: Source) -> list[Block]:
    """The funnel, what the places got, and reasons by stage."""
    stages = [*source.counts.get("stages", []), *_later(source)]
    return [
        shares(
            "At each stage, what comes in is kept, rejected with a reason, or failed and tried again by the next run.",
            [
                (
                    stage["stage"],
                    "",
                    [("kept", stage["kept"]), ("rejected", stage["rejected"]), ("failed", stage["failed"])],
                )
                for stage in stages
            ],
        ),
        table(
            ["stage", "in", "kept", "rejected", "failed", "rows made", "sum"],
            [
                (*(stage[name] for name in ("stage", "items_in", "kept", "rejected", "failed", "rows")), _sum(stage))
                for stage in stages
            ],
            ["text", "number", "number", "number", "number", "number", "text"],
            empty="No stage has finished a run yet.",
        ),
        *_coverage(source),
        *_reasons(source),
    ]


def _sum(stage: dict[str, Any]) -> str:
    withdrawn = stage.get("withdrawn", 0)
    off = stage["items_in"] - stage["kept"] - stage["rejected"] - stage["failed"] - withdrawn
    if withdrawn and off == 0:
        return f"adds up with {number(withdrawn)} withdrawn"
    return "adds up" if off == 0 else f"off by {off}"


def _later(source: Source) -> list[dict[str, Any]]:
    """The newest finished run of each stage after the review; it counts finished items as kept."""
    runs = source.read("runs").filter(pl.col("snapshot_id").is_not_null() & pl.col("status").is_in(_DONE))
    newest = runs.sort("finished_at").group_by("stage", maintain_order=True).last()
    counted = newest.filter(pl.col("items_in") > 0).select("stage", "items_in", "kept", "rejected", "failed")
    return counted.with_columns(rows=pl.lit("")).to_dicts()


def _coverage(source: Source) -> list[Block]:
    coverages = coverage(*(source.read(name) for name in ("places", "images", "gaps", "rejects")))
    if not coverages:
        return [
            heading("What the places got"),
            table(["kind"], [], empty="No place has a picture or a reason why not."),
        ]
    rows = []
    for covered in coverages:
        why = [f"{number(count)} {reason.replace('_', ' ')}" for reason, count in covered.why_not.items()]
        why += [f"{number(covered.open)} not tried yet, or failed and to be tried again"] if covered.open else []
        share, without = covered.covered / (covered.places or 1), covered.places - covered.covered
        rows.append((covered.kind, covered.pictures, covered.covered, share, without, ", ".join(why)))
    return [
        heading("What the places got"),
        table(
            ["kind", "pictures", "places with", "", "without", "why not"],
            rows,
            ["text", "number", "number", "bar", "number", "text"],
            [f"pictures?kind={coverage.kind}" for coverage in coverages],
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


MOST_COUNTRIES = 24
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


@page(
    "distributions",
    "Distributions",
    "Data",
    ("images", "labels", "places", "rejects", "judgements"),
    about="What is kept, by split: countries, scores, categories, years.",
    order=10,
)
def distributions_page(source: Source) -> list[Block]:
    """One picture for each distribution, by split, then how far each moved since the last approved snapshot."""
    rows = picture_rows(source).filter(pl.col("status") == "kept")
    if rows.is_empty():
        return [words("Nothing was kept.", "muted")]
    blocks = [_by_split(title, column, rows) for title, column in SHOWN]
    blocks.insert(0, _splits(source, rows))
    for drift in drifts(source):
        series = {"last approved": drift.before, "now": drift.now}
        blocks.append(
            bars(f"{drift.title}: moved {drift.moved:.1%} since the last approval", drift.labels, series, "share")
        )
    return blocks


def _by_split(title: str, column: str, rows: pl.DataFrame) -> Block:
    counted = {
        split: dict(values_of(rows.filter(pl.col("split") == split), column).value_counts().iter_rows())
        for split in SPLITS
    }
    names = {str(name) for counts in counted.values() for name in counts}
    total = {name: sum(counts.get(name, 0) for counts in counted.values()) for name in names}
    if column in ("score", "taken", "month"):
        ordered = sorted(names, key=int)
    else:
        ordered = sorted(names, key=lambda name: (-total[name], name))
    more = (
        f", the {MOST_COUNTRIES} largest of {len(ordered)}"
        if len(ordered) > MOST_COUNTRIES and column == "country"
        else ""
    )
    shown = ordered[:MOST_COUNTRIES] if column == "country" else ordered
    series = {split: [counted[split].get(name, 0) for name in shown] for split in SPLITS}
    return bars(f"{title}{more}", shown, series, "pictures")


def _splits(source: Source, rows: pl.DataFrame) -> Block:
    places = source.read("labels").select("image_id", "place_id")
    joined = rows.join(places, on="image_id", how="left")
    lines = []
    for split in SPLITS:
        mine = joined.filter(pl.col("split") == split)
        score = mine["score"].mean()
        kinds = [mine.filter(pl.col("kind") == kind).height for kind in ("panorama", "photo")]
        different = [mine[name].drop_nulls().n_unique() for name in ("place_id", "country")]
        lines.append((split, mine.height, *kinds, *different, f"{score:.1f}" if isinstance(score, float) else "–"))
    return table(
        ["split", "pictures", "panoramas", "photos", "places", "countries", "mean score"],
        lines,
        ["text", *["number"] * 6],  # type: ignore[list-item]
        [f"pictures?status=kept&split={split}" for split in SPLITS],
    )


@page("costs", "Costs", "Behind it", ("runs",), about="Time, requests, tokens and money.", order=10)
def costs_page(source: Source) -> list[Block]:
    """The sum of all runs of each stage."""
    runs = source.read("runs").with_columns(
        seconds=(pl.col("finished_at") - pl.col("started_at")).dt.total_milliseconds() / 1000
    )
    sums = runs.group_by("stage").agg(
        pl.len().alias("runs"),
        pl.col("items_in", "seconds", "requests", "prompt_tokens", "completion_tokens", "cost_usd").sum(),
        pl.col("started_at").min(),
    )
    sums = sums.sort("started_at", "stage")
    total = sums.select(pl.col("seconds", "requests", "prompt_tokens", "completion_tokens", "cost_usd").sum())
    if sums.is_empty():
        return [table(["stage"], [], empty="No stage has run.")]
    seconds, requests, prompt_tokens, answered, usd = total.row(0)
    return [
        figures(
            figure(f"{usd:.2f} USD", "for models"),
            figure(requests, "requests to models"),
            figure(prompt_tokens + answered, "tokens"),
            figure(_time(seconds), "of stages, one after the other"),
        ),
        table(
            ["stage", "runs", "items", "time", "requests", "tokens in", "tokens out", "USD", "USD per item"],
            [
                (
                    *(row[name] for name in ("stage", "runs", "items_in")),
                    _time(row["seconds"]),
                    *(row[name] for name in ("requests", "prompt_tokens", "completion_tokens")),
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
    hours = f"{number(round(seconds / 3600, 1))} h"
    return f"{seconds:.1f} s" if seconds < 90 else f"{seconds / 60:.1f} min" if seconds < 5400 else hours


MOST_FAILURES = 1000


@page("failures", "Failures", "Behind it", ("failures", "images"), order=20)
def failures_page(source: Source) -> list[Block]:
    """Failures by stage and kind, then one by one."""
    failures = source.read("failures").sort("stage", "kind", "item_id")
    if failures.is_empty():
        return [words("Nothing failed.", "good")]
    known = set(source.read("images")["image_id"])
    shown = failures.head(MOST_FAILURES).to_dicts()
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
