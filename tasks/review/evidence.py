"""What a review looks at: the tables at fixed versions, and where each stage's items went."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from tasks.lake import Lake
from tasks.runtime.runner import digest

TABLES = ("places", "images", "gaps", "labels", "rejects", "failures", "runs")
SNAPSHOT_TABLES = ("places", "images", "labels", "rejects")  # what a snapshot keeps readable for good
REVIEWED = ("plan", "collect", "ingest", "curate")  # the stages whose work is under review, in order
RECHECK, INGEST = "collect.recheck", "ingest"
_OUTPUTS = ("places", "images", "labels")
# How and when a picture was fetched is provenance: fetching the same picture again makes no other snapshot.
_NOT_CONTENT = {"fetched_at", "request_url", "http_status", "etag"}
_SYSTEM = {"stage", "item_id", "made_from", "run_id", "written_at", "tombstone"}


@dataclass(frozen=True)
class StageCount:
    """Where the items of one stage stand, over all runs."""

    stage: str
    items_in: int
    kept: int
    rejected: int
    failed: int
    rows: int  # in the stage's output table: one item may give several

    @property
    def balances(self) -> bool:
        return self.items_in == self.kept + self.rejected + self.failed


@dataclass(frozen=True)
class Evidence:
    """The live rows under review."""

    versions: Mapping[str, int]
    frames: Mapping[str, pl.DataFrame]

    def __getitem__(self, table: str) -> pl.DataFrame:
        return self.frames[table]


def gather(lake: Lake, versions: Mapping[str, int] | None = None) -> Evidence:
    """The tables at the given versions (default: the newest), without what later stages wrote."""
    fixed = {table: lake.version(table) for table in TABLES} if versions is None else dict(versions)
    frames = {table: lake.read(table, fixed[table]) for table in TABLES}
    return Evidence(fixed, reviewed_only(frames))


def reviewed_only(frames: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """The frames without rejects, failures and runs of stages that come after the review."""
    group = pl.col("stage").str.split(".").list.first()
    shared = ("rejects", "failures", "runs")
    return {name: rows.filter(group.is_in(REVIEWED)) if name in shared else rows for name, rows in frames.items()}


def snapshot_id(images: pl.DataFrame, labels: pl.DataFrame) -> str:
    """A name that follows from what the images and labels say, whatever table versions they stand in."""
    return digest("snapshot", _content(images, "image_id"), _content(labels, "image_id"))


def report_digest(rejects: pl.DataFrame, failures: pl.DataFrame, gaps: pl.DataFrame) -> str:
    """Changes when the report would show other rejects, failures or gaps over the same content."""
    stood = rejects.select("stage", "item_id", "reason", "evidence_json").sort("stage", "item_id")
    waiting = failures.select("stage", "item_id", "kind", "message").sort("stage", "item_id")
    lacking = gaps.select("place_id", "kind", "got", "reason").sort("place_id", "kind")
    return digest(_hash(stood), _hash(waiting), _hash(lacking))


def _content(rows: pl.DataFrame, key: str) -> str:
    columns = sorted(name for name in rows.columns if name not in _NOT_CONTENT | _SYSTEM)
    return _hash(rows.select(columns).sort(key))


def _hash(rows: pl.DataFrame) -> str:
    state = hashlib.sha256()
    for part in rows.iter_slices(50_000):  # a million rows as one text would take a gigabyte
        state.update(part.write_ndjson().encode())
    return state.hexdigest()


def funnel(evidence: Evidence) -> list[StageCount]:
    """One line a reviewed stage: its newest finished run says what came in, the tables say where it went."""
    done = evidence["runs"].filter(pl.col("status").is_in(["done", "done_with_failures"]))
    newest = done.sort("finished_at").group_by("stage", maintain_order=True).last()
    totals: dict[str, int] = dict(newest.select("stage", "total").iter_rows())
    totals.pop(RECHECK, None)  # it looks again at pictures that another stage brought: nothing goes through it
    order = {name: position for position, name in enumerate(REVIEWED)}
    return [
        _stage_count(evidence, stage, None if stage == INGEST else totals[stage])
        for stage in sorted(totals, key=lambda name: (order[name.split(".")[0]], name))
    ]


def _stage_count(evidence: Evidence, stage: str, total: int | None) -> StageCount:
    mine = {table: evidence[table].filter(pl.col("stage") == stage) for table in (*_OUTPUTS, "rejects", "failures")}
    outputs = [mine[table] for table in _OUTPUTS]
    failed = mine["failures"].select("item_id")
    # What an earlier run made of an item stands until the item is done again: it counts as failed, not twice.
    kept = pl.concat([rows.select("item_id") for rows in outputs]).unique().join(failed, on="item_id", how="anti")
    rejected = mine["rejects"].join(failed, on="item_id", how="anti")
    # No run sees all photos that were ever brought in: there the sum is told, and each run's account is checked.
    stands = kept.height + rejected.height + failed.height
    return StageCount(
        stage=stage,
        items_in=stands if total is None else total,
        kept=kept.height,
        rejected=rejected.height,
        failed=failed.height,
        rows=sum(rows.height for rows in outputs),
    )


def counts_json(evidence: Evidence) -> str:
    """The snapshot's counts as JSON: rows, splits, countries, reasons, and the funnel."""
    labels, rejects = evidence["labels"], evidence["rejects"]
    counts: dict[str, Any] = {
        "places": evidence["places"].height,
        "images": evidence["images"].height,
        "images_by_kind": tally(evidence["images"], "kind"),
        "labels": labels.height,
        "rejects": rejects.height,
        "failures": evidence["failures"].height,
        "countries": labels["country_code"].drop_nulls().n_unique(),
        "labels_by_split": tally(labels, "split"),
        "rejects_by_reason": tally(rejects, "reason"),
        "stages": [asdict(one) for one in funnel(evidence)],
    }
    return json.dumps(counts, sort_keys=True)


def tally(rows: pl.DataFrame, column: str) -> dict[str, int]:
    """How often each value occurs, most frequent first, ties by name."""
    found = rows.filter(pl.col(column).is_not_null()).group_by(column).len()
    return dict(found.sort(["len", column], descending=[True, False]).iter_rows())
