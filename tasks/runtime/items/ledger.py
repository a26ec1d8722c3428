"""A stage's bookkeeping in the lake: what is finished, what is written, what is ended and what is taken up again."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from schemas.messages import Usage
from schemas.tables import TABLES
from tasks.lake import Commit, Lake
from tasks.lake.table_schema import to_arrow
from tasks.lake.writes import INPUT_GONE, SUPERSEDED
from tasks.runtime.items.chunk import ChunkResult
from tasks.runtime.items.outcome import NO_USAGE, REJECTED, Row, StageResult, Tick
from tasks.runtime.items.stage_table import SLICE, StageTable, items_of
from tasks.runtime.items.withdrawals import STAGE as WITHDRAW
from tasks.runtime.items.withdrawals import RunWithdrawals
from tasks.services.meter import Tally

# Columns of `runs` that are fields of a result.
_COUNTS = (
    *("run_id", "stage", "status", "total", "skipped", "items_in", "kept", "rejected", "failed", "redone", "revived"),
)


@dataclass(frozen=True)
class RunPlan:
    """What a run would do, before it does it."""

    total: int  # items in the input
    todo: pl.DataFrame  # the unfinished items
    redone: pl.Series  # ids of those that have a finished version from other settings, code or input
    revived: int  # items with a finished version for just these settings, which are taken up again
    revive: pl.DataFrame  # item_id and made_from of items with rows to bring back

    @property
    def left_as_they_are(self) -> pl.Series:
        """Ids of items that were finished with other settings, and that this run does not redo."""
        return self.redone.filter(~self.redone.is_in(self.todo["id"].implode()))


@dataclass
class Ledger:
    """Reads and writes of one run of one stage."""

    lake: Lake
    stage: str
    writes: tuple[str, ...]
    run_id: str
    config_hash: str
    config_json: str
    code_version: str
    input_versions: Mapping[str, int]
    flow_run_id: str = ""
    snapshot_id: str | None = None
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    _batch: int = 0
    _leftover: int = 0  # live rows that a finished item should no longer have, such as a killed run leaves
    _others: int = 0  # live rows of items that are not in the input
    _items: pl.DataFrame | None = None

    def __post_init__(self) -> None:
        names = dict.fromkeys((*self.writes, "rejects"))
        self._tables = {name: StageTable(self.lake, name, self.stage, self.run_id) for name in names}
        self._failures = StageTable(self.lake, "failures", self.stage, self.run_id)
        self._attempts: dict[str, int] = {}  # of items with a live failure
        self._withdrawals = RunWithdrawals(self.lake)

    @property
    def marker(self) -> str:
        return self.writes[-1]

    def plan_run(self, items: pl.DataFrame) -> RunPlan:
        """Which of the items are finished, which are to be done, and which rows come back. Writes nothing."""
        self._items = items.select("id", "made_from")
        counts = {name: table.read_rows(self._items) for name, table in self._tables.items()}
        rows = {name: frame for name, (frame, _) in counts.items()}
        finishing = pl.concat([rows[self.marker].filter(~pl.col("is_rejected")), rows["rejects"]])

        def among_items(some: pl.DataFrame) -> pl.Series:
            mask = np.zeros(items.height, dtype=bool)
            mask[some["item"].to_numpy()] = True
            return pl.Series(mask)

        same = finishing.filter("same")
        done = among_items(same.filter("live"))
        back = among_items(same.filter("revivable")) & ~done
        finished = done | back
        every = pl.concat(list(rows.values()))
        every = every.filter(finished.gather(every["item"]))
        revive = self._items.filter(among_items(every.filter("revivable", "same")))
        self._leftover = every.filter(pl.col("live") & ~pl.col("same")).height
        self._others = sum(others for _, others in counts.values())
        todo = items.filter(~finished) if finished.any() else items  # a copy of ten million would be another gigabyte
        before = among_items(finishing.filter(pl.col("live") | pl.col("revivable")))
        redone = items["id"].filter(before & ~finished)
        self._read_failures()
        return RunPlan(items.height, todo, redone, int(back.sum()), revive.rename({"id": "item_id"}))

    def is_idle(self, plan: RunPlan, sweeps_absent: bool) -> bool:
        """Whether a run by this plan would change nothing: no item to do, no row to end or to take up again."""
        leftover = self._leftover or (self._others if sweeps_absent else 0)
        return not (plan.todo.height or plan.redone.len() or plan.revive.height or leftover or self._attempts)

    @cached_property
    def _last_run(self) -> Row | None:
        mine = self.lake.read("runs").filter(pl.col("stage") == self.stage).sort("finished_at")
        return mine.row(-1, named=True) if mine.height else None

    def has_ended_well(self) -> bool:
        """Whether the last run had these settings and left nothing undone."""
        last = self._last_run
        return last is not None and (last["status"], last["config_hash"]) == ("done", self.config_hash)

    def is_unchanged(self, rows: int) -> bool:
        """Whether code, input and output are those of the last run; `rows` is how many items are kept or rejected now.

        Of `rejects`, to which other steps write as well, a version says nothing.
        """
        last = self._last_run
        assert last is not None
        written = json.loads(last["output_versions_json"])
        return (
            (last["code_version"], last["snapshot_id"], last["total"]) == (self.code_version, self.snapshot_id, rows)
            and json.loads(last["input_versions_json"]) == dict(self.input_versions)
            and all(written.get(name) == self.lake.version(name) for name in self.writes)
        )

    def _read_failures(self) -> None:
        assert self._items is not None
        self._failures.read_rows(self._items)
        live = self.lake.read("failures", columns=["stage", "item_id", "attempts"])
        self._attempts = dict(live.filter(pl.col("stage") == self.stage).select("item_id", "attempts").iter_rows())

    def revive(self, items: pl.DataFrame) -> None:
        """Take up again what earlier runs made with just these settings."""
        for part in items.iter_slices(SLICE) if items.height else ():
            commit = self._next_commit()
            for table in self._tables.values():
                table.revive(part, commit)

    def commit(self, results: Iterable[ChunkResult]) -> None:
        """Write a batch. The order matters: an item counts as finished only after all of its rows are there."""
        results = list(results)
        if not results:
            return
        self._end_rows(results)
        commit = self._next_commit()
        parts = {table: [result.tables[table] for result in results if table in result.tables] for table in self.writes}
        rejected = [row for result in results for row in result.rejected]
        if rejected:
            parts["rejects"] = [to_arrow(TABLES["rejects"], rejected)]
        rows = {name: pa.concat_tables(tables) for name, tables in parts.items() if tables}
        for name, table in self._tables.items():
            redone = self._redone_of(rows.values())
            if name in rows or redone.height:
                table.write(rows.get(name), redone, commit)
        self._note_failures(results, commit)
        self._withdrawals.end_late(rows, replace(self._next_commit(), stage=WITHDRAW))

    def end_withdrawn(self) -> None:
        """End what else came of pictures that were withdrawn while the run went on."""
        self._withdrawals.end_rest(replace(self._next_commit(), stage=WITHDRAW))

    def _redone_of(self, tables: Iterable[pa.Table]) -> pl.DataFrame:
        """Those items of a batch that have rows of this stage already, in any of its tables."""
        if not any(table.has_items for table in self._tables.values()):
            return items_of([])
        items = items_of(tables)
        return items.filter(pl.any_horizontal([table.holds(items["item_id"]) for table in self._tables.values()]))

    def _end_rows(self, results: list[ChunkResult]) -> None:
        """Tombstone the rows that items say are gone. First: such an item is finished only when they are."""
        for table in self.writes:
            gone = {key: why for result in results for key, why in result.gone.get(table, {}).items()}
            for why in sorted(set(gone.values())):
                [column] = TABLES[table].key
                keys = pl.DataFrame({column: sorted(key for key in gone if gone[key] == why)})
                for part in keys.iter_slices(SLICE):
                    self._tables[table].tombstone(part, why, self._next_commit())

    def _note_failures(self, results: list[ChunkResult], commit: Commit) -> None:
        now = datetime.now(UTC)
        rows: list[Row] = [
            {
                "stage": self.stage,
                "item_id": failure.item_id,
                "kind": failure.kind,
                "message": failure.message,
                "attempts": self._attempts.get(failure.item_id, 0) + 1,
                "run_id": self.run_id,
                "written_at": now,
            }
            for result in results
            for failure in result.failed
        ]
        if rows:
            data = to_arrow(TABLES["failures"], rows)
            failed = items_of([data])
            self._failures.write(data, failed.filter(self._failures.holds(failed["item_id"])), commit)

    def sweep(self, not_done: pl.Series, keeps_history: bool | pl.Expr, is_part: bool = False) -> None:
        """Tombstone this stage's rows that a redone item left behind, or whose item left the input.

        `keeps_history` says of which `item_id` rows stay; `is_part`: the run had only a part of the items.
        """
        assert self._items is not None
        sees_all = keeps_history is not True and not is_part  # only then an absent item is one that left
        meant = ~keeps_history if isinstance(keeps_history, pl.Expr) else pl.lit(True)
        for table in self._tables.values() if self._leftover or (sees_all and self._others) else ():
            stale = table.stale(not_done)
            self._end(table, stale.filter("is_here"), SUPERSEDED)
            if sees_all:
                self._end(table, stale.filter(~pl.col("is_here"), meant), INPUT_GONE)
        mended = pl.DataFrame({"item_id": list(self._attempts)}, schema={"item_id": pl.String})
        mended = mended.filter(~pl.col("item_id").is_in(not_done.implode()))
        mended = mended.filter(meant)
        if is_part:
            mended = mended.join(self._items, left_on="item_id", right_on="id", how="semi")
        keys = mended.with_columns(stage=pl.lit(self.stage))
        for part in keys.iter_slices(SLICE) if keys.height else ():
            self._failures.tombstone(part, "done by a later run", self._next_commit())
        self._end_followers()

    def _end(self, table: StageTable, rows: pl.DataFrame, why: str) -> None:
        for part in rows.sort(table.key).iter_slices(SLICE) if rows.height else ():
            table.end(part, why, self._next_commit())

    def _end_followers(self) -> None:
        """Tombstone rows that live with rows of a table of ours, where no version of those is live any more."""
        for table in TABLES.values():
            if table.lives_with not in self.writes:
                continue
            [column] = TABLES[table.lives_with].key
            rows = self.lake.read(table.name, columns=[*table.key, column])
            if rows.height:
                versions = self.lake.collect(
                    table.lives_with,
                    self.lake.scan(table.lives_with)
                    .filter(pl.col(column).is_in(rows[column].unique().implode()))
                    .sort("written_at")
                    .group_by(column)
                    .agg(pl.col("tombstone").is_null().any().alias("lives"), pl.col("tombstone").last()),
                )
                gone = rows.join(versions.filter(~pl.col("lives")), on=column)
                for (why,), ended in gone.group_by("tombstone"):
                    reason = f"its row in {table.lives_with} is gone: {why}"
                    self.lake.tombstone(table.name, ended, reason, self._next_commit())

    def totals(self) -> tuple[dict[str, int], dict[str, int]]:
        """Over all runs: items kept and rejected; and rejects by reason."""
        # Counted in the scan: the evidence of a million rejects need not come into memory for it.
        mine = (pl.col("stage") == self.stage) & pl.col("tombstone").is_null()
        reasons = self.lake.collect("rejects", self.lake.scan("rejects").filter(mine).group_by("reason").len())
        kept = self.lake.scan(self.marker).filter(mine, ~pl.col("made_from").str.starts_with(REJECTED))
        counts = {
            # Of hashes: the texts of ten million ids would be held at once.
            "kept": int(self.lake.collect(self.marker, kept.select(pl.col("item_id").hash().n_unique())).item()),
            "rejected": int(reasons["len"].sum()),
        }
        return counts, dict(reasons.sort(["len", "reason"], descending=[True, False]).iter_rows())

    def made_by(self, items: pl.Series) -> pl.DataFrame:
        """The runs that finished these items, as far as they are known: item_id and the columns of `runs`."""
        versions = pl.concat(
            [
                self.lake.scan(name)
                .filter((pl.col("stage") == self.stage) & pl.col("item_id").is_in(items.implode()))
                .select("item_id", "run_id", "written_at")
                for name in dict.fromkeys((self.marker, "rejects"))
            ]
        )
        runs = self.lake.scan("runs").filter(pl.col("stage") == self.stage)
        columns = ("config_hash", "kept", "rejected", "requests", "prompt_tokens", "completion_tokens", "cost_usd")
        made = versions.unique().join(runs.select("run_id", *columns), on="run_id", how="left")
        return self.lake.collect(self.marker, made)

    def column_results(
        self, table: str, kept: pl.DataFrame, rejects: pl.DataFrame, todo: pl.DataFrame, size: int
    ) -> Iterator[ChunkResult]:
        """The changed rows of a columnar stage in parts of `size`, as if they had come out of chunks.

        Sorted by key, so that a part meets only those files of the table that hold keys of its own. The sorted whole
        is never there: a second copy of a large table.
        """
        system = {
            "stage": pl.lit(self.stage),
            "item_id": pl.col("id"),
            "run_id": pl.lit(self.run_id),
            "written_at": pl.lit(datetime.now(UTC)),
        }
        wanted = None if todo.height == kept.height + rejects.height else todo
        for part in _sorted_parts(kept, list(TABLES[table].key), wanted, size):
            rows = part.with_columns(**system)
            rows = rows if "id" in TABLES[table].columns else rows.drop("id")
            yield ChunkResult(kept=part["id"].to_list(), tables={table: to_arrow(TABLES[table], rows)})
        for part in _sorted_parts(rejects, ["id"], wanted, size):
            yield ChunkResult(rejected=part.with_columns(**system).drop("id").to_dicts())

    def close(
        self,
        status: str,
        counts: Tick,
        total: int,
        usage: Usage,
        sent: Tally,
        opened_at: float | None = None,
        **told: Any,
    ) -> StageResult:
        """Write the run's own row and return what the stage did; `told` are further fields of the result."""
        result = self.result(status, counts, total, usage, opened_at, **told)
        finished = datetime.now(UTC)
        self.lake.append("runs", [self._row(result, usage, sent, finished)], self._next_commit())
        return result

    def result(
        self,
        status: str,
        counts: Tick,
        total: int,
        usage: Usage = NO_USAGE,
        opened_at: float | None = None,
        **told: Any,
    ) -> StageResult:
        """What the stage did; `told` are further fields."""
        return StageResult(
            stage=self.stage,
            run_id=self.run_id,
            status=status,
            input_versions=dict(self.input_versions),
            output_versions={table: self.lake.version(table) for table in (*self.writes, "rejects")},
            total=total,
            skipped=counts.skipped,
            items_in=counts.todo,
            kept=counts.kept,
            rejected=counts.rejected,
            failed=counts.failed,
            usage=usage,
            seconds=(datetime.now(UTC) - self.started_at).total_seconds(),
            starting_s=max(0.0, opened_at - self.started_at.timestamp()) if opened_at else 0.0,
            **{"rejects": {}, "failures": {}, "totals": {}, "total_rejects": {}, **told},
        )

    def _row(self, result: StageResult, usage: Usage, sent: Tally, finished: datetime) -> Row:
        return {name: getattr(result, name) for name in _COUNTS} | {
            "item_id": self.stage,
            "written_at": finished,
            "flow_run_id": self.flow_run_id or None,
            "snapshot_id": self.snapshot_id,
            "config_hash": self.config_hash,
            "config_json": self.config_json,
            "code_version": self.code_version,
            "input_versions_json": json.dumps(result.input_versions, sort_keys=True),
            "output_versions_json": json.dumps(result.output_versions, sort_keys=True),
            "rejects_json": json.dumps(result.rejects, sort_keys=True),
            "requests": usage.requests,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cost_usd": usage.cost_usd,
            "sent_json": json.dumps(sent.by_kind()),
            "started_at": self.started_at,
            "finished_at": finished,
        }

    def _next_commit(self) -> Commit:
        self._batch += 1
        told = self.stage, self.config_hash, self.code_version, dict(self.input_versions)
        return Commit(self.run_id, self._batch, *told)


def _sorted_parts(rows: pl.DataFrame, key: list[str], todo: pl.DataFrame | None, size: int) -> Iterator[pl.DataFrame]:
    """Those of the rows that are to be done (None: all), sorted, some at a time."""
    order = rows.select(pl.arg_sort_by(key)).to_series()
    if todo is not None:
        wanted = rows.select("id", "made_from").with_row_index("row").join(todo, on=["id", "made_from"], how="semi")
        mask = np.zeros(rows.height, dtype=bool)
        mask[wanted["row"].to_numpy()] = True
        order = order.filter(pl.Series(mask).gather(order))
    for begin in range(0, len(order), size):
        yield rows[order[begin : begin + size]]
