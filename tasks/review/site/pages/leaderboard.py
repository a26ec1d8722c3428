"""Scores of every policy on the benchmark with intervals: in all, by slices, against each other, and every answer."""

from typing import Any

import polars as pl

from tasks.agent.attempt import name_by_tools
from tasks.review.site.blocks import Block, bars, heading, table, words
from tasks.review.site.page import Files, Source, chunk_of, page
from tasks.review.site.transcript import conversation
from tasks.review.site.words import distance, place_name, share

MOST = 400
PER_FILE = 100
STAGES = {"": "base", "sft": "SFT", "cold_start": "cold start", "grpo": "GRPO"}  # in the order of training
SLICED = (
    *("acc@25km", "acc@200km", "acc@750km", "median_km"),
    *("country_accuracy", "province_or_state_accuracy", "city_accuracy"),  # levels by kind: GeoVista's Table 2
)
MASKED = ("acc@25km", "acc@200km", "acc@750km", "median_km")
COMPARED = ("acc@25km", "acc@200km", "acc@750km", "median_km")


def files(source: Source) -> Files:
    """The conversations behind the answers, by digest of their keys."""
    scores = _scores(source)
    if scores.is_empty():
        return
    rows = _answered(source, _newest(source, scores))
    images = source.read("images").select("image_id", "width", "height", true_lat="lat", true_lon="lon")
    labels = source.read("labels").select("image_id", "country", "region", "city")
    rows = rows.join(images, on="image_id", how="left").join(labels, on="image_id", how="left")
    parts: dict[int, dict[str, Any]] = {number: {} for number in range(_chunks(rows))}
    for row in rows.to_dicts():
        parts[chunk_of(row["key"], len(parts))][row["key"]] = {
            "id": row["key"],
            "image": row["image_id"],
            "title": place_name(row["city"], row["region"], row["country"]),
            "recipe": row["policy"],
            "verdict": "not read" if row["parse_error"] else "answered",
            "reasons": [row["parse_error"]] if row["parse_error"] else [],
            "error_km": None if row["error_km"] is None else round(row["error_km"], 2),
            "calls": row["tool_calls"] or 0,
            **conversation(row, (row["view_width"], row["view_height"])),
        }
    for number, part in parts.items():
        yield f"answers-{number}", part


@page(
    "leaderboard",
    "Leaderboard",
    "Agents",
    ("scores", "score_slices", "score_pairs", "predictions", "models", "images", "labels", "snapshots"),
    about="Policies on pictures of this snapshot, each split apart.",
    files=files,
    order=30,
    shown=lambda source: source.version("scores") >= 0,
)
def leaderboard_page(source: Source) -> list[Block]:
    """For each split a table of policies by metric, paired comparisons and slices; then every answer."""
    scores = _scores(source)
    if scores.is_empty():
        return [words("No policy has been scored on this snapshot.", "muted")]
    newest = _newest(source, scores)
    answers = _answered(source, newest)
    blocks: list[Block] = [
        words(
            "Base models first, then SFT, cold start and GRPO. Each cell: the value, and its 95 % interval below. "
            "The best of a row is marked where its interval overlaps no other. "
            "pass@1 is the mean of N attempts. best@N knows the truth: it is what a perfect verifier would reach.",
            "muted",
        )
    ]
    for (split,), mine in newest.group_by("split", maintain_order=True):
        blocks += [heading(f"Split: {split or 'not kept by an earlier version'}")]
        blocks += _of_split(source, scores, mine, _chunks(answers))
    return [*blocks, *_answers(answers)]


def _of_split(source: Source, scores: pl.DataFrame, newest: pl.DataFrame, chunks: int) -> list[Block]:
    scores = scores.join(newest, on=["policy", "evaluation_id"], how="semi")
    metrics = sorted(scores["metric"].unique().to_list(), key=_metric_order)
    values = {(row["policy"], row["metric"]): row for row in scores.to_dicts()}
    policies, stages = newest["policy"].to_list(), newest["stage"].to_list()
    return [
        {
            "block": "leaderboard",
            "policies": [
                f"{stage}: {name}" if stage != "base" else name for name, stage in zip(policies, stages, strict=True)
            ],
            "chunks": chunks,
            "rows": [
                {
                    "metric": metric,
                    "best": best(metric, [values.get((policy, metric)) for policy in policies]),
                    "cells": [_cell(values.get((policy, metric))) for policy in policies],
                }
                for metric in metrics
            ],
        },
        *_shares("Accuracy by distance", "acc@", policies, values),
        *_shares("Answers that called a tool, by tool", "tool_rate/", policies, values),  # SpotAgent, figure 7a
        *_masked(values),
        *_pairs(source, newest),
        *_slices(source, newest),
    ]


def _scores(source: Source) -> pl.DataFrame:
    """The scores of this snapshot; a policy that was queried with tools and without has two names."""
    return name_by_tools(
        source.read("scores").filter(pl.col("snapshot_id") == source.snapshot_id), source.read("predictions")
    )


def _newest(source: Source, scores: pl.DataFrame) -> pl.DataFrame:
    """split, policy, evaluation_id and stage of each policy's newest evaluation on each split, in training order."""
    last = pl.col("evaluation_id").last()
    newest = scores.sort("written_at").group_by("split", "policy", maintain_order=True).agg(last)
    stage_of = dict(source.read("models").select("model_id", "training_stage").iter_rows())
    stages = [stage_of.get(name.removeprefix("trained:").partition(" ")[0], "") for name in newest["policy"]]
    order = {stage: number for number, stage in enumerate(STAGES)}
    return (
        newest.with_columns(
            pl.Series("stage", [STAGES.get(stage, stage) for stage in stages], dtype=pl.String),
            pl.Series("order", [order.get(stage, len(order)) for stage in stages], dtype=pl.Int64),
        )
        .sort("split", "order", "policy")
        .drop("order")
    )


def _answered(source: Source, newest: pl.DataFrame) -> pl.DataFrame:
    """The farthest answers of the shown evaluations to pictures of this snapshot, each with its key."""
    rows = source.read("predictions").join(newest, on="evaluation_id", how="semi")
    rows = rows.join(source.read("labels").select("image_id"), on="image_id", how="semi")
    rows = rows.sort("error_km", descending=True, nulls_last=False).head(MOST)
    return rows.with_columns(pl.format("{}-{}", pl.col("evaluation_id").str.head(12), "image_id").alias("key"))


def _chunks(rows: pl.DataFrame) -> int:
    return max(1, -(-rows.height // PER_FILE))


def _pairs(source: Source, newest: pl.DataFrame) -> list[Block]:
    """Every two policies on the same pictures: the difference, its interval, and McNemar's test."""
    names = dict(newest.select("evaluation_id", "policy").iter_rows())
    shown = newest["evaluation_id"].implode()
    rows = source.read("score_pairs").filter(
        (pl.col("snapshot_id") == source.snapshot_id)
        & pl.col("evaluation_id").is_in(shown)
        & pl.col("other_id").is_in(shown)
        & pl.col("metric").is_in(COMPARED)
    )
    if rows.is_empty():
        return []
    lines = [
        (
            names[row["evaluation_id"]],
            names[row["other_id"]],
            row["metric"],
            _signed(row["metric"], row["difference"]),
            f"{_signed(row['metric'], row['low'])} to {_signed(row['metric'], row['high'])}",
            "" if row["p"] is None else f"{row['p']:.3g}",
            f"{row['only_first'] or 0:,} / {row['only_second'] or 0:,}" if row["p"] is not None else "",
            row["n"],
        )
        for row in rows.sort("policy", "other_policy", "metric").to_dicts()
    ]
    titles = ["policy", "against", "metric", "difference", "95 % interval", "McNemar p", "only 1st / only 2nd", "n"]
    kinds: list[Any] = ["text", "text", "text", "text", "text", "text", "text", "number"]
    about = "the second policy less the first, picture by picture; the interval is a paired bootstrap's"
    return [heading("Paired comparisons", about), table(titles, lines[:MOST], kinds)]


def _signed(metric: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:+,.1f} km" if metric.endswith("_km") else f"{100 * value:+.1f} points"


def _slices(source: Source, newest: pl.DataFrame) -> list[Block]:
    """The main metrics by kind, tier, localizability, category, country, continent and tool pattern."""
    rows = source.read("score_slices").filter(
        (pl.col("snapshot_id") == source.snapshot_id)
        & pl.col("evaluation_id").is_in(newest["evaluation_id"].implode())
        & pl.col("metric").is_in(SLICED)
    )
    rows = rows.drop("policy").join(newest.select("evaluation_id", "policy"), on="evaluation_id", how="left")
    blocks: list[Block] = []
    for (by,), mine in rows.sort("slice_by", "slice", "policy").group_by("slice_by", maintain_order=True):
        cells: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        for row in mine.to_dicts():
            cells.setdefault((row["slice"], row["policy"]), {})[row["metric"]] = row
        lines = [
            (name, policy, *(_slice_cell(metric, values.get(metric)) for metric in SLICED), _count(values))
            for (name, policy), values in cells.items()
        ]
        titles = [metric.removesuffix("_accuracy").replace("_", " ") for metric in SLICED]
        kinds: list[Any] = ["text", "text", *["text"] * len(SLICED), "number"]
        blocks += [
            heading(f"By {str(by).replace('_', ' ')}"),
            table([str(by), "policy", *titles, "n"], lines[:MOST], kinds),
        ]
    return blocks


def _slice_cell(metric: str, row: dict[str, Any] | None) -> str:
    if row is None or row["value"] is None:
        return "–"
    if metric.endswith("_km"):
        return distance(row["value"])
    return share(row)


def _count(values: dict[str, dict[str, Any]]) -> int:
    return max(int(row["n"]) for row in values.values())


def _metric_order(metric: str) -> tuple[int, float, str]:
    if metric.startswith("acc@"):
        return 0, float(metric.removeprefix("acc@").removesuffix("km")), metric
    return 1, 0.0, metric


def _lower_is_better(metric: str) -> bool:
    return metric.endswith("_km") or any(word in metric for word in ("failure", "error", "seconds", "tokens", "cost"))


def best(metric: str, cells: list[dict[str, Any] | None]) -> list[int]:
    """The position of the best value; none where its interval overlaps another's, or is not known."""
    known = [(position, cell) for position, cell in enumerate(cells) if cell is not None and cell["value"] is not None]
    if len(known) < 2:
        return []
    sign = -1 if _lower_is_better(metric) else 1
    first, *others = sorted(known, key=lambda entry: sign * entry[1]["value"], reverse=True)
    near, far = ("high", "low") if sign < 0 else ("low", "high")
    edge = first[1][near]
    apart = edge is not None and all(other[far] is not None and sign * edge > sign * other[far] for _, other in others)
    return [first[0]] if apart else []


def _cell(row: dict[str, Any] | None) -> list[Any]:
    return [None, None, None, 0] if row is None else [row["value"], row["low"], row["high"], row["n"]]


def _shares(title: str, prefix: str, policies: list[str], values: dict[tuple[str, str], dict[str, Any]]) -> list[Block]:
    """The metrics of a name's beginning as bars, by policy; none where nothing was measured."""
    metrics = sorted({metric for _, metric in values if metric.startswith(prefix)}, key=_metric_order)
    series = {
        policy: [(values[policy, metric]["value"] or 0.0) if (policy, metric) in values else 0.0 for metric in metrics]
        for policy in policies
    }
    return [bars(title, [name.removeprefix(prefix) for name in metrics], series, "share")] if metrics else []


def _masked(values: dict[tuple[str, str], dict[str, Any]]) -> list[Block]:
    """What is left of the accuracy without each cue (GeoAgent D.3)."""
    rows = []
    for policy in sorted({name for name, _ in values if " without " in name}):
        base_policy, _, cue = policy.partition(" without ")
        plain = f"{base_policy} whole"
        cells = [
            f"{_slice_cell(metric, values.get((plain, metric)))} → {_slice_cell(metric, values.get((policy, metric)))}"
            for metric in MASKED
        ]
        rows.append((base_policy, cue, *cells, (values.get((policy, MASKED[0])) or {"n": 0})["n"]))
    if not rows:
        return []
    about = "the same pictures whole → with one kind of cue covered in grey; a policy that rests on one cue falls"
    kinds: list[Any] = ["text", "text", *["text"] * len(MASKED), "number"]
    return [heading("Robustness: cues masked", about), table(["policy", "without", *MASKED, "n"], rows, kinds)]


def _answers(rows: pl.DataFrame) -> list[Block]:
    """Every answer of the shown evaluations, the worst first, with the conversation one click away."""
    return [
        heading("Answers", "the farthest first"),
        table(
            ["picture", "policy", "error", "score", "answer", "conversation"],
            [
                (
                    row["image_id"],
                    row["policy"],
                    f"not read: {row['parse_error']}" if row["parse_error"] else distance(row["error_km"]),
                    "–" if row["geoscore"] is None else f"{row['geoscore']:.0f}",
                    (row["answer"] or "")[:200],
                    row["key"],
                )
                for row in rows.to_dicts()
            ],
            ["picture", "text", "text", "number", "text", "answer"],
        ),
    ]
