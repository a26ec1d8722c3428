"""Every refused, failed or odd row of a table in one CSV file, and their sums with the first examples."""

import csv
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import polars as pl

from tasks.ingest.dataset import live_rows
from tasks.lake import Lake

HEADER = ("row", "id", "outcome", "reason", "column", "given", "what is wrong", "what to do")
AGAIN = "run the same command again: it is tried again"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[-+]?[\d.]+(?:, [-+]?[\d.]+)?")  # a position south or west is none
EXAMPLES = 3  # of each reason, for the summary


@dataclass
class Sums:
    """Counts and first examples, by reason."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def count(self, reason: str, example: dict[str, Any]) -> None:
        self.counts[reason] += 1
        shown = self.examples.setdefault(reason, [])
        if len(shown) < EXAMPLES:
            shown.append(example)


class Report:
    """Written row by row under a temporary name; it gets its own when it is whole."""

    def __init__(self, folder: Path, dataset: str) -> None:
        self.path = folder / f"ingest-{dataset}.csv"
        self.refused, self.failed, self.noted = Sums(), Sums(), Sums()
        self._part = folder / f".ingest-{dataset}.tmp"

    def __enter__(self) -> Self:
        self._part.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._part.open("w", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file)
        self._writer.writerow(HEADER)
        return self

    def report_batch(self, lake: Lake, batch: pl.DataFrame) -> None:
        """Write what the lake says of the batch's rows that were refused or failed, or kept with notes."""
        items = batch.lazy().select("row", "source_id", item_id="id")

        def of_batch(table: str, *columns: str) -> pl.DataFrame:
            rows = live_rows(lake, table).select("item_id", *columns).join(items, on="item_id", how="inner")
            return lake.collect(table, rows.select("row", "source_id", *columns))

        for row, source_id, reason, text in of_batch("rejects", "reason", "evidence_json").sort("row").iter_rows():
            evidence = json.loads(text or "{}")
            told = {name: evidence.get(name) or "" for name in ("column", "given", "problem", "fix")}
            self._write(row, source_id, "refused", reason, *told.values())
            self.refused.count(reason, {"row": row, "id": source_id, **told})
        for row, source_id, kind, message in of_batch("failures", "kind", "message").sort("row").iter_rows():
            self._write(row, source_id, "failed", kind, "", "", message, AGAIN)
            self.failed.count(kind, {"row": row, "id": source_id, "column": "", "given": "", "problem": message or ""})
        # A row that is refused now says nothing of the photo it once was.
        items = items.join(batch.lazy().filter(pl.col("refusal").is_null()).select("row"), on="row", how="semi")
        noted = of_batch("images", "notes").explode("notes").drop_nulls("notes").sort("row", "notes")
        for row, source_id, note in noted.iter_rows():
            reason, _, value = note.partition(": ")
            self._write(row, source_id, "kept", reason, "", value, "", "")
            self.noted.count(reason, {"row": row, "id": source_id, "given": value})

    def _write(self, row: int, *texts: str | None) -> None:
        self._writer.writerow((row, *(_no_formula(text or "") for text in texts)))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        if kind is None:
            self._part.replace(self.path)
        else:
            self._part.unlink(missing_ok=True)


def _no_formula(text: str) -> str:
    """Text that a spreadsheet shows as it is. It computes what begins like a formula, and a table is from outside."""
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text
