"""Stages that work on a frame of items at a time, in workers that hold a model, with a GPU if they ask for one.

The guarantees are those of `Stage`: every item is kept, rejected or failed. A batch that raises is done again item by
item, so that only the item that raises fails; a batch that kills its worker is split by the pool in the same way.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from schemas.errors import GeofixError
from schemas.messages import Usage
from tasks.runtime.chunk import ChunkJob, ChunkResult, Failure
from tasks.runtime.outcome import Kept, Outcome, Rejected, Row
from tasks.runtime.stage import Stage

NO_OUTCOME = "no_outcome"  # the kind of failure of an item that its batch says nothing about


@dataclass(frozen=True)
class BatchOutcome:
    """What came of a batch. In every frame the column `id` names the item."""

    kept: Mapping[str, pl.DataFrame] = field(default_factory=dict)  # by table: `id` and the table's own columns
    rejects: pl.DataFrame = field(default_factory=pl.DataFrame)  # `id`, `reason`, and columns that are the evidence
    usage: Usage = Usage()


@dataclass(frozen=True)
class BatchStage(Stage):
    """Work batch by batch, spread over Ray. `resources.chunk` is the size of a batch, here or in `spread.stages`."""

    work: Callable[[pl.DataFrame, Any], BatchOutcome]  # (items, context) -> outcome; raises = one by one
    batch_size: int = 64

    def __post_init__(self) -> None:
        object.__setattr__(self, "resources", replace(self.resources, chunk=self.batch_size, may_grow=False))


@dataclass(frozen=True)
class BatchJob(ChunkJob):
    """A chunk is a batch."""

    def make_sync(self) -> Callable[[pl.DataFrame], ChunkResult]:
        context, opened_at = self._opened()

        def call(chunk: pl.DataFrame) -> ChunkResult:
            outcomes, usage = self._batch(chunk.drop("made_from"), context)
            result = self.gather(zip(chunk["id"], chunk["made_from"], outcomes, strict=True))
            result.usage += usage
            result.opened_at = opened_at
            return result

        return call

    def _batch(self, batch: pl.DataFrame, context: Any) -> tuple[list[Outcome | Failure], Usage]:
        ids: list[str] = batch["id"].to_list()
        try:
            found = self.work(batch, context)
        except Exception as error:  # noqa: BLE001 - what a batch raises is the failure of one of its items
            failure = self._failure(ids[0], error)
            if len(ids) == 1 or failure.fatal:  # a fatal one every item would meet
                return [replace(failure, item_id=item_id) for item_id in ids], Usage()
        else:
            return self._outcomes(ids, found), found.usage
        alone = [self._batch(one, context) for one in batch.iter_slices(1)]
        return [outcome for outcomes, _ in alone for outcome in outcomes], sum((usage for _, usage in alone), Usage())

    def _outcomes(self, ids: list[str], found: BatchOutcome) -> list[Outcome | Failure]:
        known = set(ids)
        kept: dict[str, dict[str, list[Row]]] = {}
        for table, frame in found.kept.items():
            for row in self._of_items(frame, known, f"rows for '{table}'"):
                kept.setdefault(row.pop("id"), {}).setdefault(table, []).append(row)
        rejected = {row.pop("id"): row for row in self._of_items(found.rejects, known, "rejects")}
        return [self._outcome(item_id, kept, rejected) for item_id in ids]

    def _of_items(self, frame: pl.DataFrame, known: set[str], what: str) -> list[Row]:
        rows = frame.to_dicts()
        for row in rows:
            if row.get("id") not in known:
                raise GeofixError(f"step {self.stage} returned {what} of item '{row.get('id')}', not in its batch")
        return rows

    def _outcome(
        self, item_id: str, kept: dict[str, dict[str, list[Row]]], rejected: dict[str, Row]
    ) -> Outcome | Failure:
        if item_id in rejected:
            evidence = rejected[item_id]
            return Rejected(str(evidence.pop("reason")), evidence, kept.get(item_id, {}))
        if item_id in kept:
            return Kept(kept[item_id])
        return Failure(item_id, NO_OUTCOME, "the batch returned neither a row nor a reject for it")
