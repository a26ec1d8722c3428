"""The fresh benchmark: its months with their proof, what policies score in each, and the gap that memorising leaves."""

import json
from datetime import date
from math import sqrt
from typing import Any

import polars as pl

from tasks.review.site.blocks import Block, bars, commands, figure, figures, heading, table, words
from tasks.review.site.page import Source, page
from tasks.reward.metrics import share

METRIC = "acc@25km"
Interval = tuple[float, float, float]  # value, low, high


@page(
    "fresh",
    "Fresh benchmark",
    "Agents",
    ("benchmarks", "score_slices", "snapshots"),
    about="Pictures newer than models' training data, month by month; what a policy remembers shows as a gap.",
    order=35,
    shown=lambda source: source.version("benchmarks") >= 0,
)
def fresh_page(source: Source) -> list[Block]:
    """Months and proof, accuracy by month, and each policy before and after its cut-off."""
    months = source.read("benchmarks").sort("month")
    manifests = {row["month"]: json.loads(row["manifest_json"]) for row in months.to_dicts()}
    if not manifests:
        return [words("No month was drawn yet.", "muted"), commands(source.command("benchmark"))]
    scores = _newest(source)
    return [
        figures(
            figure(len(manifests), "months"),
            figure(sum(manifest["counts"]["kept"] for manifest in manifests.values()), "pictures"),
            figure(_nearest(manifests), "nearest training cell"),
        ),
        words(
            "A set is drawn once and signed. Months do not overlap, and each holds only pictures that were captured "
            "after the cut-off of the day it was drawn.",
            "muted",
        ),
        _months(manifests),
        *_scored(scores, list(manifests)),
        *_gaps(scores, manifests),
        commands(source.command("benchmark --verify")),
    ]


def _nearest(manifests: dict[str, Any]) -> str:
    known = [manifest["proof"]["nearest_training_cell_km"] for manifest in manifests.values()]
    return f"{min(km for km in known if km is not None):,} km" if any(km is not None for km in known) else "none"


def _months(manifests: dict[str, Any]) -> Block:
    rows = []
    for month, manifest in manifests.items():
        counts, proof = manifest["counts"], manifest["proof"]
        why = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in counts["rejected"].items())
        nearest = proof["nearest_training_cell_km"]
        rows.append(
            (
                *(month, f"{manifest['captured_after']} to {manifest['captured_until']}", counts["in"], counts["kept"]),
                *(why or "none", "–" if nearest is None else f"{nearest:,} km", proof["training_pictures"]),
                f"{proof['copies_found']:,} of {proof['copies_looked_for_among']:,}",
            )
        )
    return table(
        ["month", "captured after, until", "in", "kept", "rejected", "nearest training cell", "training pictures",
         "copies found among"],
        rows,
        ["text", "text", "number", "number", "text", "text", "number", "text"],
    )  # fmt: skip


def _newest(source: Source) -> pl.DataFrame:
    """Slices by month of each policy's newest evaluation."""
    rows = source.read("score_slices").filter(pl.col("slice_by") == "month", pl.col("metric") == METRIC)
    newest = pl.col("evaluation_id") == pl.col("evaluation_id").sort_by("written_at").last().over("policy")
    return rows.filter(newest).sort("written_at").unique(["policy", "slice"], keep="last").sort("policy", "slice")


def _scored(scores: pl.DataFrame, months: list[str]) -> list[Block]:
    title = heading("Accuracy by month", f"{METRIC} of each policy's newest evaluation, with 95 % intervals")
    if scores.is_empty():
        return [title, words("No policy has been evaluated since the first month was drawn.", "muted")]
    by_policy = {(row["policy"], row["slice"]): row for row in scores.to_dicts()}
    policies = scores["policy"].unique(maintain_order=True).to_list()
    value = {name: [(by_policy.get((name, month)) or {"value": 0.0})["value"] for month in months] for name in policies}
    rows = [[name, *(_cell(by_policy.get((name, month))) for month in months)] for name in policies]
    return [title, bars(METRIC, months, value, "share"), table(["policy", *months], rows)]


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    return f"{100 * row['value']:.0f} % ({100 * row['low']:.0f} to {100 * row['high']:.0f}), n {row['n']:,}"


def _gaps(scores: pl.DataFrame, manifests: dict[str, Any]) -> list[Block]:
    """Every policy whose cut-off is known: months its training data may hold against those after it."""
    cutoffs = {
        name: date.fromisoformat(day) for manifest in manifests.values() for name, day in manifest["cutoffs"].items()
    }
    rows = []
    for (policy,), mine in scores.group_by("policy", maintain_order=True):
        cutoff = cutoffs.get(str(policy).partition(" ")[0])
        if cutoff is None:
            continue
        old = [
            month for month, manifest in manifests.items() if date.fromisoformat(manifest["captured_until"]) <= cutoff
        ]
        new = [
            month for month, manifest in manifests.items() if date.fromisoformat(manifest["captured_after"]) >= cutoff
        ]
        before, after = (_pooled(mine.filter(pl.col("slice").is_in(months))) for months in (old, new))
        if before is None or after is None:
            continue
        gap = difference(before, after)
        told = "remembers" if gap[1] > 0 else "no gap to be seen"
        rows.append([policy, cutoff, _share(before), _share(after), _share(gap, signed=True), told])
    about = "months up to a policy's cut-off, which its training data may hold, against the months after it"
    if not rows:
        return [
            heading("Remembered or found", about),
            words("No policy has scores on both sides of a known cut-off (benchmark.cutoffs) yet.", "muted"),
        ]
    columns = ["policy", "cut-off", "months before", "months after", "gap", ""]
    return [heading("Remembered or found", about), table(columns, rows)]


def _pooled(rows: pl.DataFrame) -> Interval | None:
    """The share over several months."""
    if not rows.height:
        return None
    pooled = share(METRIC, float((rows["value"] * rows["n"]).sum()), int(rows["n"].sum()))
    return pooled.value, pooled.low, pooled.high


def difference(first: Interval, second: Interval) -> Interval:
    """First minus second with its 95 % interval, from those of both (Newcombe 1998, method 10)."""
    gap = first[0] - second[0]
    low = sqrt((first[0] - first[1]) ** 2 + (second[2] - second[0]) ** 2)
    high = sqrt((first[2] - first[0]) ** 2 + (second[0] - second[1]) ** 2)
    return gap, gap - low, gap + high


def _share(value: Interval, signed: bool = False) -> str:
    sign = "+" if signed else ""
    return f"{100 * value[0]:{sign}.1f} % ({100 * value[1]:{sign}.1f} to {100 * value[2]:{sign}.1f})"
