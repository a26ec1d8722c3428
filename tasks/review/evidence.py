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
from tasks.lake.withdrawn import REASON as WITHDRAWN
from tasks.runtime.items.outcome import REJECTED
from tasks.runtime.runner import digest

TABLES = ("places", "images", "gaps", "labels", "rejects", "failures", "runs")
SNAPSHOT_TABLES = ("places", "images", "labels", "rejects")  # what a snapshot keeps readable for good
REVIEW, COLLECT, RECHECK, INGEST = "review", "collect", "collect.recheck", "ingest"
DONE = ("done", "done_with_failures")  # the status of a run that came to its end
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
    withdrawn: int = 0  # came in, and was withdrawn since

    @property
    def lost(self) -> int:
        """Items of which nothing is known; negative: there are more than came in."""
        return self.items_in - self.kept - self.rejected - self.failed - self.withdrawn


@dataclass(frozen=True)
class Evidence:
    """The live rows under review."""

    versions: Mapping[str, int]
    frames: Mapping[str, pl.DataFrame]
    outputs: pl.DataFrame  # table, stage, item_id and made_from of the rows of the reviewed stages' own tables
    withdrawn: pl.DataFrame  # stage, item_id and written_at of rows that a withdrawal ended

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
    ended = [_withdrawn(lake, name) for name in sorted(written | {"rejects", "failures"})]
    return Evidence(versions, frames, pl.concat([empty, *outputs]), pl.concat(ended))


def _withdrawn(lake: Lake, table: str) -> pl.DataFrame:
    rows = lake.scan(table).filter(pl.col("tombstone").str.starts_with(WITHDRAWN))
    return lake.collect(table, rows.select("stage", "item_id", "written_at"))


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
    return dict(sorted(written.items(), key=lambda entry: (min((order[t] for t in entry[1]), default=0), entry[0])))


def unfinished(runs: pl.DataFrame) -> list[str]:
    """Work before the review that is missing: a stage without a finished run, or one that has not seen its input."""
    written = reviewed_stages(runs)
    newest = runs.sort("started_at").group_by("stage", maintain_order=True).last().sort("started_at")
    last = {row["stage"]: row for row in newest.to_dicts() if row["stage"] in written}
    # A table has one writer: of two stages the later one has taken the other's place, as after a change of names.
    own = {table: stage for stage in last for table in written[stage] if not CONTRACTS[table].shared}
    stages = {
        stage: tables
        for stage, tables in written.items()
        if tables and all(own.get(table, stage) == stage for table in tables)
    }
    problems = [
        f"{stage}: its last run was {last[stage]['status']}"
        for stage in stages
        if not str(last[stage]["status"]).startswith("done")
    ]
    made = {table for stage, tables in stages.items() if last[stage]["status"] in DONE for table in tables}
    problems += [f"no stage has made {table}" for table in ("images", "labels") if table not in made]
    # A stage may look back at what later ones made, and that counts for the next refresh.
    order = list(dict.fromkeys(stage.partition(".")[0] for stage in stages))
    place = {stage: order.index(stage.partition(".")[0]) for stage in stages}
    for stage, tables in stages.items():
        reads = set(json.loads(last[stage]["input_versions_json"] or "{}")) - set(tables)
        problems += [
            f"{stage} has not seen what {other} made"
            for other, others in stages.items()
            if place[other] <= place[stage]
            and reads & set(others)
            and last[other]["kept"] + last[other]["rejected"]
            and last[other]["finished_at"] > last[stage]["started_at"]
        ]
    return problems


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
    done = evidence["runs"].filter(pl.col("status").is_in(DONE))
    newest = done.sort("finished_at").group_by("stage", maintain_order=True).last()
    last = {row["stage"]: row for row in newest.to_dicts()}
    last.pop(RECHECK, None)  # it checks pictures that another stage brought: nothing goes through it
    return [
        _stage_count(evidence, stage, tables, last[stage])
        for stage, tables in reviewed_stages(evidence["runs"]).items()
        if stage in last
    ]


def _stage_count(evidence: Evidence, stage: str, tables: tuple[str, ...], run: Mapping[str, Any]) -> StageCount:
    mine = pl.col("stage") == stage
    rows = evidence.outputs.filter(mine)
    failed = evidence["failures"].filter(mine).select("item_id")
    # What an earlier run made of an item stands until the item is done again: it counts as failed, not twice.
    made = rows.filter(~pl.col("made_from").fill_null("").str.starts_with(REJECTED)).select("item_id").unique()
    kept = made.join(failed, on="item_id", how="anti")
    rejected = evidence["rejects"].filter(mine).join(failed, on="item_id", how="anti")
    seen = kept.height + rejected.height + failed.height
    # Withdrawn since the run: it was given the item, and no table has it now.
    ended = evidence.withdrawn.filter(mine, pl.col("written_at") > run["started_at"]).select("item_id").unique()
    for outcome_rows in (kept, rejected, failed):
        ended = ended.join(outcome_rows, on="item_id", how="anti")
    # No run sees all photos that were ever ingested: there the sum is shown, and each run's account is checked.
    items_in = seen if stage == INGEST else int(run["total"])
    return StageCount(
        stage=stage,
        items_in=items_in,
        kept=kept.height,
        rejected=rejected.height,
        failed=failed.height,
        rows=rows.filter(pl.col("table").is_in(tables[:1])).height,
        # An item may have left the input before it was withdrawn: then it did not come in.
        withdrawn=max(0, min(ended.height, items_in - seen)),
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
        "stages": [asdict(step) for step in funnel(evidence)],
    }
    return json.dumps(counts, sort_keys=True)


def tally(rows: pl.DataFrame, column: str) -> dict[str, int]:
    """How often each value occurs, most frequent first, ties by name."""
    counts = rows.filter(pl.col(column).is_not_null()).group_by(column).len()
    return dict(counts.sort(["len", column], descending=[True, False]).iter_rows())
