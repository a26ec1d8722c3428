"""What a review looks at: the tables at fixed versions, and where each stage's items went."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from schemas.tables import SYSTEM_COLUMNS
from schemas.tables import TABLES as CONTRACTS
from tasks.lake import Lake
from tasks.runtime.outcome import REJECTED
from tasks.runtime.runner import digest

TABLES = ("places", "images", "gaps", "labels", "rejects", "failures", "runs")
SNAPSHOT_TABLES = ("places", "images", "labels", "rejects")  # what a snapshot keeps readable for good
REVIEW, RECHECK, INGEST = "review", "collect.recheck", "ingest"
_OF_EVERY_STAGE = ("rejects", "failures", "runs")  # written by every stage, also by those after the review
# How and when a picture was fetched is provenance: fetching the same picture again makes no other snapshot.
_NOT_CONTENT = {"fetched_at", "request_url", "http_status", "etag"}


@dataclass(frozen=True)
class StageCount:
    """Where the items of one stage stand, over all runs."""

    stage: str
    items_in: int
    kept: int
    rejected: int
    failed: int
    rows: int  # in the first of the stage's tables: one item may give several

    @property
    def balances(self) -> bool:
        return self.items_in == self.kept + self.rejected + self.failed


@dataclass(frozen=True)
class Evidence:
    """The live rows under review."""

    versions: Mapping[str, int]
    frames: Mapping[str, pl.DataFrame]
    outputs: pl.DataFrame  # table, stage, item_id and made_from of the rows of the reviewed stages' own tables

    def __getitem__(self, table: str) -> pl.DataFrame:
        return self.frames[table]


def gather(lake: Lake) -> Evidence:
    """The tables as they are now, without what later stages wrote."""
    versions = {table: lake.version(table) for table in TABLES}
    frames = reviewed_only({table: lake.read(table, versions[table]) for table in TABLES})
    written = {table for tables in reviewed_stages(frames["runs"]).values() for table in tables}
    columns = ["stage", "item_id", "made_from"]
    outputs = [lake.read(name, columns=columns).with_columns(table=pl.lit(name)) for name in sorted(written)]
    empty = pl.DataFrame(schema=dict.fromkeys([*columns, "table"], pl.String))
    return Evidence(versions, frames, pl.concat([empty, *outputs]))


def reviewed_stages(runs: pl.DataFrame) -> dict[str, tuple[str, ...]]:
    """The stages whose work is under review and the tables each writes, in the order of the data.

    A stage after the review works on a snapshot, and its runs say which; the newest run of a stage decides.
    """
    newest = runs.sort("started_at").group_by("stage", maintain_order=True).last()
    newest = newest.filter(pl.col("snapshot_id").is_null() & (pl.col("stage") != REVIEW))
    written = {
        stage: tuple(name for name in CONTRACTS if name in json.loads(text or "{}") and name not in _OF_EVERY_STAGE)
        for stage, text in newest.select("stage", "output_versions_json").iter_rows()
    }
    order = {name: position for position, name in enumerate(CONTRACTS)}
    return dict(sorted(written.items(), key=lambda one: (min((order[t] for t in one[1]), default=0), one[0])))


def reviewed_only(frames: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """The frames without rejects, failures and runs of stages that come after the review."""
    mine = pl.col("stage").is_in(list(reviewed_stages(frames["runs"])))
    return {name: rows.filter(mine) if name in _OF_EVERY_STAGE else rows for name, rows in frames.items()}


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
    columns = sorted(name for name in rows.columns if name not in _NOT_CONTENT | set(SYSTEM_COLUMNS))
    return _hash(rows.select(columns).sort(key))


def _hash(rows: pl.DataFrame) -> str:
    state = hashlib.sha256()
    for part in rows.iter_slices(50_000):  # a million rows as one text would take a gigabyte
        state.update(part.write_ndjson().encode())
    return state.hexdigest()


def funnel(evidence: Evidence) -> list[StageCount]:
    """One line for each reviewed stage: its newest finished run says what came in, the tables say where it went."""
    done = evidence["runs"].filter(pl.col("status").is_in(["done", "done_with_failures"]))
    newest = done.sort("finished_at").group_by("stage", maintain_order=True).last()
    totals: dict[str, int] = dict(newest.select("stage", "total").iter_rows())
    totals.pop(RECHECK, None)  # it checks pictures that another stage brought: nothing goes through it
    return [
        _stage_count(evidence, stage, tables, None if stage == INGEST else totals[stage])
        for stage, tables in reviewed_stages(evidence["runs"]).items()
        if stage in totals
    ]


def _stage_count(evidence: Evidence, stage: str, tables: tuple[str, ...], total: int | None) -> StageCount:
    mine = pl.col("stage") == stage
    rows = evidence.outputs.filter(mine)
    failed = evidence["failures"].filter(mine).select("item_id")
    # What an earlier run made of an item stands until the item is done again: it counts as failed, not twice.
    made = rows.filter(~pl.col("made_from").fill_null("").str.starts_with(REJECTED)).select("item_id").unique()
    kept = made.join(failed, on="item_id", how="anti")
    rejected = evidence["rejects"].filter(mine).join(failed, on="item_id", how="anti")
    # No run sees all photos that were ever ingested: there the sum is shown, and each run's account is checked.
    seen = kept.height + rejected.height + failed.height
    return StageCount(
        stage=stage,
        items_in=seen if total is None else total,
        kept=kept.height,
        rejected=rejected.height,
        failed=failed.height,
        rows=rows.filter(pl.col("table").is_in(tables[:1])).height,
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
