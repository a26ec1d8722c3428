"""A stage's bookkeeping in the lake: what is finished, what is written, what is swept away."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import polars as pl
import pyarrow as pa

from schemas.errors import LakeError
from schemas.messages import Usage
from schemas.tables import TABLES
from tasks.lake import Commit, Lake
from tasks.lake.table_schema import to_arrow
from tasks.runtime.chunk import REJECTED, ChunkResult
from tasks.runtime.outcome import StageResult, Tick

TOMBSTONE_ROWS = 100_000  # at once: ending a row rewrites its file


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

    @property
    def marker(self) -> str:
        return self.writes[-1]

    def unfinished(self, items: pl.DataFrame) -> pl.DataFrame:
        """The items that no live row of the marker table or of the rejects says are finished."""
        done = pl.concat([self._mine(self.marker), self._mine("rejects")])
        return items.join(done, left_on=["id", "made_from"], right_on=["item_id", "made_from"], how="anti")

    def commit(self, results: Iterable[ChunkResult]) -> None:
        """Write a batch. The order matters: an item counts as finished only after all of its rows are there."""
        results = list(results)
        if not results:
            return
        self._end_rows(results)
        commit = self._next_commit()
        for table in self.writes:
            parts = [result.tables[table] for result in results if table in result.tables]
            if parts:
                self._upsert(table, pa.concat_tables(parts), commit)
        rejected = [row for result in results for row in result.rejected]
        if rejected:
            self.lake.upsert("rejects", rejected, commit)
        self._note_failures(results, commit)

    def _end_rows(self, results: list[ChunkResult]) -> None:
        """Tombstone the rows that items say are gone. First: such an item is finished only when they are."""
        for table in self.writes:
            gone = {key: why for result in results for key, why in result.gone.get(table, {}).items()}
            for why in sorted(set(gone.values())):
                [column] = TABLES[table].key
                self._tombstone(table, pl.DataFrame({column: sorted(key for key in gone if gone[key] == why)}), why)

    def _upsert(self, table: str, rows: pa.Table, commit: Commit) -> None:
        frame = pl.from_arrow(rows)
        assert isinstance(frame, pl.DataFrame)
        key = list(TABLES[table].key)
        shared = frame.filter(pl.struct(key).is_duplicated())
        if shared.height:
            first = shared.row(0, named=True)
            raise LakeError(
                f"stage {self.stage}: items {', '.join(sorted(set(shared['item_id']))[:3])} wrote the same "
                f"{table} row ({', '.join(f'{k}={first[k]}' for k in key)}); keys must follow from the item"
            )
        self.lake.upsert(table, frame, commit)

    def _note_failures(self, results: list[ChunkResult], commit: Commit) -> None:
        failed = [failure for result in results for failure in result.failed]
        if not failed:
            return
        before = self.lake.read("failures").filter(pl.col("stage") == self.stage)
        attempts = dict(before.select("item_id", "attempts").iter_rows())
        now = datetime.now(UTC)
        rows = [
            {
                "stage": self.stage,
                "item_id": failure.item_id,
                "kind": failure.kind,
                "message": failure.message,
                "attempts": attempts.get(failure.item_id, 0) + 1,
                "run_id": self.run_id,
                "written_at": now,
            }
            for failure in failed
        ]
        self.lake.upsert("failures", rows, commit)

    def sweep(self, items: pl.DataFrame, not_done: set[str], keeps_history: bool, partial: bool = False) -> None:
        """Tombstone this stage's rows that a redone item left behind, or whose item left the input."""
        current = items.select(item_id="id", made_from="made_from")
        unfinished = pl.Series(sorted(not_done), dtype=pl.String).implode()
        for table in (*self.writes, "rejects"):
            names = list(dict.fromkeys([*TABLES[table].key, "item_id", "made_from"]))
            stale = (
                self.lake.scan(table)
                .filter(
                    (pl.col("stage") == self.stage)
                    & pl.col("tombstone").is_null()
                    & ~pl.col("item_id").is_in(unfinished)
                )
                .select(names)
                .with_columns(pl.col("made_from").str.strip_prefix(REJECTED))
                .join(current.lazy(), on=["item_id", "made_from"], how="anti")
                .collect()
            )
            self._tombstone(table, stale.join(current, on="item_id", how="semi"), "superseded by a newer run")
            if not keeps_history and not partial:
                self._tombstone(table, stale.join(current, on="item_id", how="anti"), "its input is gone")
        failures = self.lake.read("failures").filter(
            (pl.col("stage") == self.stage) & ~pl.col("item_id").is_in(unfinished)
        )
        if partial:
            failures = failures.join(current, on="item_id", how="semi")
        self._tombstone("failures", failures, "done by a later run")
        self._end_followers()

    def _end_followers(self) -> None:
        """Tombstone rows that live with rows of a table of ours, where those have ended, by whomever and whenever."""
        for table in TABLES.values():
            if table.lives_with not in self.writes:
                continue
            [column] = TABLES[table.lives_with].key
            rows = self.lake.read(table.name, columns=[*table.key, column])
            if rows.height:
                gone = (
                    self.lake.scan(table.lives_with)
                    .filter(pl.col(column).is_in(rows[column].unique().implode()) & pl.col("tombstone").is_not_null())
                    .select(column, "tombstone")
                    .collect()
                )
                for (why,), ended in rows.join(gone, on=column).group_by("tombstone"):
                    self._tombstone(table.name, ended, f"its row in {table.lives_with} is gone: {why}")

    def _tombstone(self, table: str, rows: pl.DataFrame, why: str) -> None:
        key = list(TABLES[table].key)
        for part in rows.select(key).sort(key).iter_slices(TOMBSTONE_ROWS) if rows.height else ():
            self.lake.tombstone(table, part, why, self._next_commit())

    def standing(self) -> tuple[dict[str, int], dict[str, int]]:
        """Over all runs: items kept and rejected, live rows by table; and rejects by reason."""
        # Counted where they lie: the evidence of a million rejects need not come into memory for it.
        mine = (pl.col("stage") == self.stage) & pl.col("tombstone").is_null()
        reasons = self.lake.scan("rejects").filter(mine).group_by("reason").len().collect()
        counts = {
            "kept": self._mine(self.marker)
            .filter(~pl.col("made_from").str.starts_with(REJECTED))["item_id"]
            .n_unique(),
            "rejected": int(reasons["len"].sum()),
        }
        return counts, dict(reasons.sort(["len", "reason"], descending=[True, False]).iter_rows())

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
        for part in _sorted_parts(kept, list(TABLES[table].key), todo, size):
            rows = part.with_columns(**system)
            rows = rows if "id" in TABLES[table].columns else rows.drop("id")
            yield ChunkResult(kept=part["id"].to_list(), tables={table: to_arrow(TABLES[table], rows)})
        for part in _sorted_parts(rejects, ["id"], todo, size):
            yield ChunkResult(rejected=part.with_columns(**system).drop("id").to_dicts())

    def close(
        self,
        status: str,
        counts: Tick,
        total: int,
        usage: Usage,
        rejects: Mapping[str, int] | None = None,
        failures: Mapping[str, int] | None = None,
        standing: Mapping[str, int] | None = None,
        standing_rejects: Mapping[str, int] | None = None,
        opened_at: float | None = None,
    ) -> StageResult:
        """Write the run's own row and return what the stage did."""
        finished = datetime.now(UTC)
        outputs = {table: self.lake.version(table) for table in (*self.writes, "rejects")}
        row = {
            "run_id": self.run_id,
            "stage": self.stage,
            "item_id": self.stage,
            "written_at": finished,
            "flow_run_id": self.flow_run_id or None,
            "snapshot_id": self.snapshot_id,
            "config_hash": self.config_hash,
            "config_json": self.config_json,
            "code_version": self.code_version,
            "input_versions_json": json.dumps(dict(self.input_versions), sort_keys=True),
            "output_versions_json": json.dumps(outputs, sort_keys=True),
            "total": total,
            "skipped": counts.skipped,
            "items_in": counts.todo,
            "kept": counts.kept,
            "rejected": counts.rejected,
            "failed": counts.failed,
            "rejects_json": json.dumps(dict(rejects or {}), sort_keys=True),
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cost_usd": usage.cost_usd,
            "started_at": self.started_at,
            "finished_at": finished,
            "status": status,
        }
        self.lake.append("runs", [row], self._next_commit())
        return StageResult(
            stage=self.stage,
            run_id=self.run_id,
            status=status,
            input_versions=dict(self.input_versions),
            output_versions=outputs,
            total=total,
            skipped=counts.skipped,
            items_in=counts.todo,
            kept=counts.kept,
            rejected=counts.rejected,
            failed=counts.failed,
            rejects=dict(rejects or {}),
            failures=dict(failures or {}),
            standing=dict(standing or {}),
            standing_rejects=dict(standing_rejects or {}),
            usage=usage,
            seconds=(finished - self.started_at).total_seconds(),
            starting_s=max(0.0, opened_at - self.started_at.timestamp()) if opened_at else 0.0,
        )

    def _mine(self, table: str) -> pl.DataFrame:
        return (
            self.lake.scan(table)
            .filter((pl.col("stage") == self.stage) & pl.col("tombstone").is_null())
            .select("item_id", "made_from")
            .unique()
            .collect()
        )

    def _next_commit(self) -> Commit:
        self._batch += 1
        return Commit(
            self.run_id,
            self._batch,
            self.stage,
            self.config_hash,
            self.code_version,
            dict(self.input_versions),
        )


def _sorted_parts(rows: pl.DataFrame, key: list[str], todo: pl.DataFrame, size: int) -> Iterator[pl.DataFrame]:
    """Those of the rows that are to be done, sorted, some at a time."""
    names = list(dict.fromkeys([*key, "id", "made_from"]))
    wanted = rows.select(names).with_row_index("row").join(todo, on=["id", "made_from"], how="semi").sort(key)["row"]
    for begin in range(0, len(wanted), size):
        yield rows[wanted[begin : begin + size]]
