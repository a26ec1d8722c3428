"""What agents did with each picture: thoughts, calls, results, answer and verdict."""

from typing import Any

import polars as pl

from tasks.recipes.recipe import RECIPES
from tasks.review.site.blocks import Block, figure, figures, table
from tasks.review.site.page import Files, Page, Source, chunk_of
from tasks.review.site.transcript import conversation
from tasks.review.site.words import meaning, place_name

PER_FILE = 100


def make(source: Source) -> list[Block]:
    """Counts, reasons, and the list; the conversations come in files of their own."""
    rows = _rows(source)
    reasons = rows.explode("reasons").group_by("reasons").len().drop_nulls().sort("len", descending=True)
    kept = rows.filter(pl.col("verdict") == "kept").height
    return [
        figures(
            figure(rows.height, "trajectories"),
            figure(kept, "kept", "good", "trajectories?verdict=kept"),
            figure(rows.height - kept, "rejected", link="trajectories?verdict=rejected"),
        ),
        table(
            ["recipe", "trajectories", "kept", "what decides"],
            [(name, all_, kept_, _kept_when(name)) for name, all_, kept_ in _by_recipe(rows).iter_rows()],
            ["code", "number", "number", "text"],
            [f"trajectories?recipe={name}" for name in _by_recipe(rows)["recipe"]],
        ),
        table(
            ["reason", "trajectories", "meaning"],
            [(reason, count, meaning(reason)) for reason, count in reasons.iter_rows()],
            ["code", "number", "text"],
            [f"trajectories?reason={reason}" for reason in reasons["reasons"]],
            empty="None was rejected.",
        ),
        {"block": "trajectories", "rows": [_line(row) for row in rows.to_dicts()], "chunks": _chunks(rows)},
    ]


def _kept_when(recipe: str) -> str:
    """Which trajectories a recipe keeps; empty for a recipe that is not installed."""
    return RECIPES[recipe].kept_when if recipe in RECIPES else ""


def _by_recipe(rows: pl.DataFrame) -> pl.DataFrame:
    kept = (pl.col("verdict") == "kept").sum().alias("kept")
    return rows.group_by("recipe").agg(pl.len(), kept).sort("recipe")


def files(source: Source) -> Files:
    """The conversations, by digest of the trajectory's id."""
    rows = _rows(source)
    chunks = _chunks(rows)
    parts: dict[int, dict[str, Any]] = {number: {} for number in range(chunks)}
    for row in rows.to_dicts():
        parts[chunk_of(row["trajectory_id"], chunks)][row["trajectory_id"]] = {
            **_line(row),
            **conversation(row, (row["view_width"], row["view_height"])),
        }
    for number, part in parts.items():
        yield f"trajectories-{number}", part


def _rows(source: Source) -> pl.DataFrame:
    images = source.read("images").select("image_id", "width", "height", true_lat="lat", true_lon="lon")
    labels = source.read("labels").select("image_id", "country", "region", "city")
    rows = source.read("trajectories").join(images, on="image_id", how="left").join(labels, on="image_id", how="left")
    return rows.sort("verdict", "image_id", "recipe", "sample")


def _line(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": row["trajectory_id"],
        "image": row["image_id"],
        "title": place_name(row["city"], row["region"], row["country"]),
        "recipe": row["recipe"],
        "verdict": row["verdict"],
        "reasons": list(row["reasons"] or ()),
        "error_km": None if row["error_km"] is None else round(row["error_km"], 2),
        "calls": row["tool_calls"],
    }


def _chunks(rows: pl.DataFrame) -> int:
    return max(1, -(-rows.height // PER_FILE))


PAGE = Page(
    id="trajectories",
    title="Trajectories",
    group="Agents",
    about="How agents reasoned, with the tools they used, and why some were rejected.",
    reads=("trajectories", "images", "labels"),
    make=make,
    files=files,
    order=0,
    shown=lambda source: source.version("trajectories") >= 0,
)
