"""SpotAgent's Table 8 and figure 8 of the newest policy measured, and how many groups have rewards that differ."""

from collections.abc import Callable

import polars as pl

from schemas.settings.difficulty import DifficultySettings
from tasks.difficulty.regime import table8
from tasks.lake import Lake
from tasks.runtime.report import MADE_FROM, Report, markdown_table, report_folder, write_files
from tasks.runtime.runner import digest

VERSION = 1


def report(lake: Lake, settings: DifficultySettings) -> Report:
    """The report over the regimes of each policy, newest first; CSV files beside it."""
    rows = lake.read("regimes")
    policies = rows.group_by("policy").agg(pl.col("written_at").max()).sort("written_at", descending=True)["policy"]
    text = ["# Difficulty: Pass@K"]
    make: dict[str, Callable[[], bytes]] = {}
    for number, policy in enumerate(policies):
        mine = rows.filter(pl.col("policy") == policy).sort("image_id")
        tables = {"table8": table8(mine), "passes": passes(mine), "groups": groups(mine)}
        text += [
            f"## {policy}: {mine.height:,} pictures, K = {mine.select(pl.col('k').max()).item()}",
            markdown_table(tables["table8"]),
        ]
        text += ["Pictures by trials that passed (figure 8):", markdown_table(tables["passes"])]
        text += ["Groups, and whether their rewards differ:", markdown_table(tables["groups"]), without_variance(mine)]
        for name, table in tables.items():
            make[f"{number}-{name}.csv"] = _csv(table)
    key = digest(
        "difficulty report", VERSION, [content.decode() for content in (make[name]() for name in sorted(make))]
    )
    files = write_files(report_folder(lake, "difficulty"), key, make)
    lake.blobs.push("reports/difficulty", last=MADE_FROM)
    return Report("\n\n".join(text) + "\n", files)


def passes(regimes: pl.DataFrame) -> pl.DataFrame:
    """At each threshold, how many pictures had 0, 1, … K trials that passed."""
    counted = (
        regimes.select("threshold_km", "passes")
        .explode("threshold_km", "passes")
        .group_by("threshold_km", "passes")
        .len()
        .pivot("passes", index="threshold_km", values="len", sort_columns=True)
        .sort("threshold_km")
        .fill_null(0)
    )
    numbers = sorted((name for name in counted.columns if name != "threshold_km"), key=int)
    return counted.select("threshold_km", *numbers)


def groups(regimes: pl.DataFrame) -> pl.DataFrame:
    """Groups learnable by Pass@K, those whose rewards differ, those kept, and the share without variance."""
    learnable, varies, kept = (regimes.filter(pl.col(name)) for name in ("learnable", "reward_varies", "kept"))
    sets = {"all": regimes, "0 < Pass@K < K": learnable, "rewards differ": varies, "kept": kept}
    rows = [
        {
            "groups": name,
            "number": table.height,
            "without_variance": table.filter(~pl.col("reward_varies")).height,
            "share_pct": round(100 * table.filter(~pl.col("reward_varies")).height / max(1, table.height), 1),
        }
        for name, table in sets.items()
    ]
    return pl.DataFrame(rows)


def without_variance(regimes: pl.DataFrame) -> str:
    """The share of groups that teach nothing, among all pictures and among those kept for GRPO, in one line."""
    told = {row["groups"]: row for row in groups(regimes).to_dicts()}
    before, after = (
        f"{told[name]['without_variance']:,} of {told[name]['number']:,} ({told[name]['share_pct']} %)"
        for name in ("all", "kept")
    )
    return f"Groups without reward variance: {before} before the filter, {after} after it."


def _csv(table: pl.DataFrame) -> Callable[[], bytes]:
    return lambda: table.write_csv().encode()
