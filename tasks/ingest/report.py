"""Every refused, failed or odd row of a table in one CSV file, and their sums with the first examples."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from tasks.ingest.dataset import live_rows
from tasks.lake import Lake

COLUMNS = {"problem": "what is wrong", "fix": "what to do"}  # as the file calls them
AGAIN = "run the same command again: it is tried again"
_TEXTS = ("id", "outcome", "reason", "column", "given", "problem", "fix")
_EVIDENCE = pl.Struct(dict.fromkeys(("column", "given", "problem", "fix"), pl.String))
# A spreadsheet computes what begins like a formula, and a table is from outside. A position south or west is none.
_FORMULA, _NUMBER = r"^[=+\-@\t\r]", r"^[-+]?[\d.]+(?:, [-+]?[\d.]+)?$"
EXAMPLES = 3  # of each reason, for the summary


@dataclass(frozen=True)
class Sums:
    """Counts and first examples of one outcome, by reason."""

    counts: Counter[str]
    examples: dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Report:
    """The file, and what is in it."""

    path: Path
    refused: Sums
    failed: Sums
    noted: Sums


def write_report(lake: Lake, dataset: str, items: pl.DataFrame) -> Report:
    """What the lake says of a table's rows that were refused or failed, or kept with notes.

    `items` has row, id, item_id of every row, and whether it is `good`.
    """

    def of_table(table: str, rows: pl.DataFrame, *columns: str | pl.Expr) -> pl.DataFrame:
        found = live_rows(lake, table).join(rows.lazy(), on="item_id").select("row", "id", *columns)
        return lake.collect(table, found)

    evidence = pl.col("evidence_json").str.json_decode(_EVIDENCE).alias("evidence")
    refused = of_table("rejects", items, pl.lit("refused").alias("outcome"), "reason", evidence).unnest("evidence")
    because = (pl.col("kind").alias("reason"), pl.col("message").alias("problem"), pl.lit(AGAIN).alias("fix"))
    failed = of_table("failures", items, pl.lit("failed").alias("outcome"), *because)
    # A row that is refused now says nothing of the photo it once was.
    notes = of_table("images", items.filter("good"), pl.lit("kept").alias("outcome"), "notes").explode("notes")
    note = pl.col("notes").str.splitn(": ", 2).struct.rename_fields(["reason", "given"])
    noted = notes.drop_nulls("notes").with_columns(note).unnest("notes")
    told = pl.concat([refused, failed, noted], how="diagonal")
    told = told.select("row", pl.col(_TEXTS).fill_null("")).sort("row", "reason")
    path = lake.blobs.local(f"reports/ingest-{dataset}.csv")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".ingest-{dataset}.tmp")
    text = pl.col(_TEXTS)
    computed = text.str.contains(_FORMULA) & ~text.str.contains(_NUMBER)
    shown = pl.when(computed).then(text.str.replace("^", "'")).otherwise(text)
    told.with_columns(shown).rename(COLUMNS).write_csv(temporary)
    temporary.replace(path)
    lake.blobs.push(f"reports/{path.name}")
    return Report(path, *(_sums(told.filter(outcome=outcome)) for outcome in ("refused", "failed", "kept")))


def _sums(told: pl.DataFrame) -> Sums:
    rows = told.drop("outcome")
    examples = {
        str(reason): first.drop("reason").head(EXAMPLES).to_dicts()
        for (reason,), first in rows.group_by("reason", maintain_order=True)
    }
    return Sums(Counter(told["reason"].to_list()), examples)
