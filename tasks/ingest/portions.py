"""The table as items for the stage, some thousand rows at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from schemas.settings.ingest import IngestSettings
from schemas.settings.plan import PlanSettings
from tasks.geo.cell_split import SPLITS, cell_number, keeps_clear, split_of_cells
from tasks.ingest.check import Checker
from tasks.ingest.files import PictureFolder
from tasks.ingest.refusal import Refusal
from tasks.ingest.survey import Survey, hash_id

SCHEMA: dict[str, Any] = {
    "id": pl.String,
    "row": pl.Int64,
    **dict.fromkeys(("source_id", "file", "url", "licence", "creator", "attribution", "captured_at"), pl.String),
    **dict.fromkeys(("split", "kind", "sequence_id", "refusal", "notes"), pl.String),
    **dict.fromkeys(("lat", "lon", "compass_angle"), pl.Float64),
    **dict.fromkeys(("size", "mtime_ns"), pl.Int64),
}


def item_id(dataset: str, source_id: str) -> str:
    """The id of a row's item. A dataset's name holds neither / nor :, so datasets cannot meet."""
    return f"{dataset}/{source_id}"


def row_item_id(dataset: str, row: int, source_id: str | None) -> str:
    """The id of a row that cannot be told by its own id, because it has none or shares it."""
    return f"{dataset}:{row}/{source_id or ''}"


def of_dataset(dataset: str) -> pl.Expr:
    """Whether a row's item belongs to a dataset."""
    item = pl.col("item_id")
    return item.str.starts_with(f"{dataset}/") | item.str.starts_with(f"{dataset}:")


@dataclass(frozen=True)
class Portions:
    """A surveyed table in portions."""

    survey: Survey
    dataset: str
    settings: IngestSettings
    plan: PlanSettings  # whose seed, shares and buffer decide the split of rows that name none

    def __iter__(self) -> Iterator[pl.DataFrame]:
        """Frames of items, with the columns of SCHEMA."""
        found = self.survey
        checker = Checker(
            found.layout, found.names, self.settings, PictureFolder(found.folder), found.suspect_ids, found.lettered_ids
        )
        items: list[dict[str, Any]] = []
        for row, record in self.survey.records():
            items.append(self._item(checker, row, record))
            if len(items) == self.settings.rows_at_a_time:
                self.survey.check_unchanged()
                yield self._frame(checker, items)
                items = []
        if items:
            yield self._frame(checker, items)

    def _item(self, checker: Checker, row: int, record: dict[str, str | None] | Refusal) -> dict[str, Any]:
        if isinstance(record, Refusal):
            return {**checker.refused(row, None, record), "id": row_item_id(self.dataset, row, None)}
        item = checker.item(row, record)
        source_id = item["source_id"]
        if source_id is None:
            return {**item, "id": row_item_id(self.dataset, row, None)}
        first, differs = self.survey.repeated.get(hash_id(source_id), (row, False))
        if differs or first != row:
            column = self.survey.names.get("id", "path")
            where = f"{self.survey.table.word} {first}"
            if differs:
                said = f"stands in several rows that disagree, the first in {where}"
                refusal = Refusal("conflicting_id", said, column, source_id)
            else:
                refusal = Refusal("duplicate_id", f"stands in {where} already", column, source_id)
            return {**checker.refused(row, source_id, refusal), "id": row_item_id(self.dataset, row, source_id)}
        return {**item, "id": item_id(self.dataset, source_id)}

    def _frame(self, checker: Checker, items: list[dict[str, Any]]) -> pl.DataFrame:
        open_ones = [n for n, item in enumerate(items) if item["refusal"] is None and item["split"] is None]
        if open_ones:
            lat = np.array([items[n]["lat"] for n in open_ones])
            lon = np.array([items[n]["lon"] for n in open_ones])
            splits = split_of_cells(self.plan.seed, self.plan.split, self.plan.buffer_km)
            clear = keeps_clear(lat, lon, splits, self.plan.buffer_km)
            for n, cell, is_clear in zip(open_ones, cell_number(lat, lon).tolist(), clear.tolist(), strict=True):
                items[n]["split"] = SPLITS[splits[cell]]
                if not is_clear:
                    said = f"nearer than {self.plan.buffer_km:g} km to a cell of another split"
                    given = f"{items[n]['lat']:g}, {items[n]['lon']:g}"
                    refusal = Refusal("near_other_split", said, self.survey.names["lat"], given)
                    refused = checker.refused(items[n]["row"], items[n]["source_id"], refusal)
                    items[n] = {**refused, "id": items[n]["id"]}
        return pl.DataFrame(items, schema=SCHEMA)
