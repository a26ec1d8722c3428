"""What answers rest on: accuracy lost when a cue is covered, and whether the stated reasons hold."""

import json
from typing import Any

import polars as pl

from tasks.review.site.blocks import Block, bars, commands, heading, table, words
from tasks.review.site.page import Source, page
from tasks.review.site.words import distance, share

MOST = 200
METRICS = ("acc@25km", "acc@200km", "acc@750km")
GROUNDED = {
    "grounded_rate": "answers whose reasons hold, as far as they were checked",
    "signs_seen_rate": "of answers that quote signs: every sign is in the picture",
    "tool_supported_rate": "of answers whose tools gave places: one supports the answer",
    "grounded_acc@25km": "right within 25 km, for reasons that hold",
    "acc@25km": "right within 25 km, whatever the reasons",
}


@page(
    "cues",
    "Reasons and cues",
    "Agents",
    ("scores", "cue_losses", "groundings", "predictions", "labels"),
    about="Whether answers are right for the right reason: what they rest on, and what they state.",
    order=35,
    shown=lambda source: source.version("scores") >= 0,
)
def cues_page(source: Source) -> list[Block]:
    """Cue attribution by policy, grounding by policy, and the answers whose reasons do not hold."""
    scores = source.read("scores").filter(pl.col("snapshot_id") == source.snapshot_id)
    return [*_attribution(source), *_grounding(scores), *_ungrounded(source, scores)]


def _attribution(source: Source) -> list[Block]:
    losses = source.read("cue_losses").filter(pl.col("snapshot_id") == source.snapshot_id)
    about = "the same pictures whole, and with one kind of cue covered in grey; what is lost was found by that cue"
    blocks = [heading("Accuracy lost without a cue", about)]
    if losses.is_empty():
        asks = (
            "evaluate --set evaluate.masking.policies=[ROLE] --set evaluate.masking.cues=[text,plates,poles,plants,sky]"
        )
        return [*blocks, words("No policy was queried with cues covered.", "muted"), commands(source.command(asks))]
    newest = losses.sort("written_at").unique(["policy", "cue", "pictures", "metric"], keep="last")
    for (policy,), mine in newest.sort("policy").group_by("policy", maintain_order=True):
        every = mine.filter((pl.col("pictures") == "all pictures") & pl.col("metric").is_in(METRICS))
        order = (
            every.filter(pl.col("metric") == METRICS[0]).sort("lost", "cue", descending=[True, False])["cue"].to_list()
        )
        lost = {(row["cue"], row["metric"]): 100 * row["lost"] for row in every.to_dicts()}
        series = {metric: [lost.get((cue, metric), 0.0) for cue in order] for metric in METRICS}
        blocks.append(bars(f"{policy}: points lost, all pictures", order, series, "points"))
        rows = mine.filter(pl.col("metric").is_in(METRICS)).to_dicts()
        rows.sort(key=lambda row: (order.index(row["cue"]), row["pictures"], METRICS.index(row["metric"])))
        lines = [
            (
                row["cue"],
                row["pictures"],
                row["metric"],
                f"{row['whole']:.1%}",
                f"{row['without']:.1%}",
                f"{100 * row['lost'] + 0.0:+.1f}",
                f"{100 * row['low']:+.1f} to {100 * row['high']:+.1f}",
                "" if row["p"] is None else f"{row['p']:.3g}",
                row["n"],
            )
            for row in rows
        ]
        titles = ["cue", "on", "metric", "whole", "without", "points lost", "95 % interval", "McNemar p", "n"]
        kinds: list[Any] = ["text"] * 8 + ["number"]
        blocks.append(table(titles, lines, kinds))
    return blocks


def _grounding(scores: pl.DataFrame) -> list[Block]:
    """Each policy's shares on its newest evaluation, the benchmark's first."""
    last = pl.col("evaluation_id").last()
    newest = scores.sort("written_at").group_by("split", "policy", maintain_order=True).agg(last)
    lines = []
    for split, policy, evaluation in newest.sort("split", "policy").iter_rows():
        by_metric = {row["metric"]: row for row in scores.filter(pl.col("evaluation_id") == evaluation).to_dicts()}
        if "grounded_rate" in by_metric:
            rows = [(title, by_metric[name]) for name, title in GROUNDED.items() if name in by_metric]
            lines += [(policy, split or "", title, share(row), row["n"]) for title, row in rows]
    if not lines:
        return [heading("Reasons that hold"), words("The reasons of no answer were looked at.", "muted")]
    kinds: list[Any] = ["text", "text", "text", "text", "number"]
    return [
        heading("Reasons that hold", "quoted signs are compared with what the role evaluate.grounding.reader reads"),
        table(["policy", "split", "share of answers", "", "n"], lines, kinds),
    ]


def _ungrounded(source: Source, scores: pl.DataFrame) -> list[Block]:
    """Answers whose reasons do not hold, the nearest first: these are right for the wrong reason."""
    mine = source.read("groundings").join(scores.select("evaluation_id").unique(), on="evaluation_id", how="semi")
    labels = source.read("labels").select("image_id")
    errors = source.read("predictions").select("evaluation_id", "image_id", "error_km")
    rows = mine.filter(~pl.col("grounded")).join(labels, on="image_id", how="semi")
    rows = rows.join(errors, on=["evaluation_id", "image_id"], how="left").sort("error_km", "image_id", nulls_last=True)
    if rows.is_empty():
        return []
    lines = [
        (row["image_id"], row["policy"], "–" if row["error_km"] is None else distance(row["error_km"]), _against(row))
        for row in rows.head(MOST).to_dicts()
    ]
    return [
        heading("Reasons that do not hold", f"{rows.height:,} answers, the nearest first"),
        table(["picture", "policy", "error", "what speaks against it"], lines, ["picture", "text", "text", "text"]),
    ]


def _against(row: dict[str, Any]) -> str:
    unseen, false = (json.loads(row[name] or "[]") for name in ("unseen_json", "contradicted_json"))
    reasons = [f"reads {sign}, which is not in the picture" for sign in unseen]
    reasons += [f"false: {sentence}" for sentence in false]
    reasons += ["no place that a tool gave is near the answer"] if row["supported"] is False else []
    return "; ".join(reasons)[:400]
