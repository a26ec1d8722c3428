"""How hard pictures are for a policy: Pass@K at each threshold."""

from collections import Counter

import polars as pl

from tasks.review.site.blocks import Block, bars, figure, figures, heading, table
from tasks.review.site.page import Source, page
from tasks.review.site.words import distance, passes

REGIMES = ("mastered", "learnable", "intractable")
MOST = 400


@page(
    "difficulty",
    "Difficulty",
    "Agents",
    ("attempts", "regimes"),
    about="What a policy masters, can learn, or cannot do yet.",
    order=10,
    shown=lambda source: source.version("regimes") >= 0,
)
def difficulty_page(source: Source) -> list[Block]:
    """For each policy: regimes by threshold, passes, and every picture."""
    blocks: list[Block] = []
    attempts = source.read("attempts")
    for (policy,), rows in source.read("regimes").group_by("policy", maintain_order=True):
        kept = int(rows["kept"].sum())
        tries = attempts.filter(pl.col("policy") == policy)
        blocks += [
            heading(str(policy), f"{rows.height:,} pictures, {max(rows['k'])} tries each"),
            figures(
                figure(kept, "learnable at one threshold at least", "good"),
                figure(rows.height - kept, "mastered or intractable"),
                figure(tries.filter(pl.col("parse_error").is_not_null()).height, "answers that could not be read"),
            ),
            *_by_threshold(rows),
            _each(rows, tries),
        ]
    return blocks


def _by_threshold(rows: pl.DataFrame) -> list[Block]:
    counts: dict[float, Counter[str]] = {}
    for thresholds, regimes in rows.select("threshold_km", "regimes").iter_rows():
        for km, regime in zip(thresholds or (), regimes or (), strict=False):
            counts.setdefault(km, Counter())[regime] += 1
    labels = [f"{km:g} km" for km in sorted(counts)]
    series = {regime: [counts[km][regime] for km in sorted(counts)] for regime in REGIMES}
    return [bars("Pictures by regime at each threshold", labels, series, "pictures")] if counts else []


def _each(rows: pl.DataFrame, tries: pl.DataFrame) -> Block:
    best = dict(tries.group_by("image_id").agg(pl.col("error_km").min()).iter_rows())
    lines = []
    for row in rows.sort("kept", "image_id", descending=[True, False]).head(MOST).to_dicts():
        phase = f"phase {row['phase']}" if row["phase"] else "not used"
        lines.append((row["image_id"], passes(row), distance(best.get(row["image_id"])), phase))
    return table(["picture", "passes", "best try", "curriculum"], lines, ["picture", "text", "text", "text"])
