"""What synthesis yielded: shares kept, reasons, errors, tool patterns (SpotAgent fig. 6), tool use (fig. 7)."""

import json
from typing import Any

import polars as pl

from schemas.settings.synthesize import SynthesizeSettings
from tasks.lake import Lake
from tasks.runtime.report import Report, markdown_table, report_folder, write_files

BOUNDS_KM = (1, 5, 25, 200, 750, 2500)
PATTERNS = 10  # the most common ones are shown
NEAR_KM = 25.0


def report(lake: Lake, settings: SynthesizeSettings) -> Report:
    """The tables of every recipe's trajectories, as one page and as files."""
    columns = ["recipe", "image_id", "verdict", "reasons", "error_km", "tool_pattern", "calls_json", "end_reason"]
    rows = lake.read("trajectories", columns=columns)
    tables = {
        "yields": yields(rows),
        "reasons": reasons(rows),
        "errors": errors(rows),
        "tool_patterns": patterns(rows),
        "tools": tool_use(rows),
    }
    titles = {
        "yields": "Yield",
        "reasons": "Why trajectories were rejected, or how they ended",
        "errors": "Distance of the answer from the truth",
        "tool_patterns": "Tool patterns",
        "tools": "Tool rate and success",
    }
    parts = [f"## {titles[name]}\n\n{markdown_table(table)}" for name, table in tables.items()]
    markdown = "# Trajectories\n\n" + "\n\n".join(parts) + "\n"
    make = {f"{name}.csv": _csv(table) for name, table in tables.items()} | {"report.md": lambda: markdown.encode()}
    folder = report_folder(lake, "synthesize")
    return Report(markdown, write_files(folder, f"trajectories {lake.version('trajectories')}", make))


def yields(rows: pl.DataFrame) -> pl.DataFrame:
    """By recipe: pictures, attempts, kept ones and their shares."""
    kept = pl.col("verdict") == "kept"
    return (
        rows.group_by("recipe")
        .agg(
            pictures=pl.col("image_id").n_unique(),
            attempts=pl.len(),
            kept=kept.sum(),
            pictures_with_one=pl.col("image_id").filter(kept).n_unique(),
        )
        .with_columns(share=(pl.col("kept") / pl.col("attempts")).round(3))
        .sort("recipe")
    )


def reasons(rows: pl.DataFrame) -> pl.DataFrame:
    """By recipe and reason: attempts, one that has two reasons counted under both."""
    exploded = rows.explode("reasons").drop_nulls("reasons")
    return (
        exploded.group_by("recipe", reason="reasons")
        .agg(attempts=pl.len())
        .sort("recipe", "attempts", descending=[False, True])
    )


def errors(rows: pl.DataFrame) -> pl.DataFrame:
    """By recipe: attempts with a point, their median error, and the share within each bound."""
    placed = rows.drop_nulls("error_km")
    shares = {f"within_{km}_km": (pl.col("error_km") < km).mean().round(3) for km in BOUNDS_KM}
    return (
        placed.group_by("recipe")
        .agg(attempts=pl.len(), median_km=pl.col("error_km").median().round(2), **shares)
        .sort("recipe")
    )


def patterns(rows: pl.DataFrame) -> pl.DataFrame:
    """The most common sequences of tools, with how often they are used and how often the answer is near."""
    near = (pl.col("error_km") < NEAR_KM).fill_null(False)
    counts = rows.group_by("recipe", pattern="tool_pattern").agg(
        attempts=pl.len(), kept=(pl.col("verdict") == "kept").sum(), near=near.mean().round(3)
    )
    return (
        counts.sort("attempts", "pattern", descending=[True, False])
        .group_by("recipe", maintain_order=True)
        .head(PATTERNS)
        .sort("recipe", "attempts", descending=[False, True])
    )


def tool_use(rows: pl.DataFrame) -> pl.DataFrame:
    """By recipe and tool: calls, calls an attempt, share of attempts that use it, share of calls that succeed."""
    calls: list[dict[str, Any]] = []
    for number, (recipe, text) in enumerate(rows.select("recipe", "calls_json").iter_rows()):
        for call in json.loads(text or "[]"):
            calls.append({"recipe": recipe, "tool": call["name"], "attempt": number, "succeeded": call["succeeded"]})
    schema = {"recipe": pl.String, "tool": pl.String, "attempt": pl.Int64, "succeeded": pl.Boolean}
    attempts = rows.group_by("recipe").agg(attempts=pl.len())
    return (
        pl.DataFrame(calls, schema=schema)
        .group_by("recipe", "tool")
        .agg(calls=pl.len(), used_by=pl.col("attempt").n_unique(), success=pl.col("succeeded").mean().round(3))
        .join(attempts, on="recipe")
        .with_columns(
            calls_per_attempt=(pl.col("calls") / pl.col("attempts")).round(2),
            tool_rate=(pl.col("used_by") / pl.col("attempts")).round(3),
        )
        .select("recipe", "tool", "calls", "calls_per_attempt", "tool_rate", "success")
        .sort("recipe", "tool")
    )


def _csv(table: pl.DataFrame) -> Any:
    return lambda: table.write_csv().encode()
