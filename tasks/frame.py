"""What every stage is, and how it is run.

The author of a stage says what it reads, what it writes, which items there are and what is done to one item. The
frame skips finished items, spreads the rest, commits in batches, keeps rejects with reasons and failures for retry,
and proves that in = kept + rejected + failed.

Guarantee: an item is finished when a live row of the stage's last table (or of `rejects`) carries its digest. A run
killed at any moment leaves whole batches or nothing; the next run does the unfinished items again, and since rows are
merged by key, none is written twice.
"""

import functools
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import polars as pl

from schemas.messages import Usage
from schemas.settings.spread import SpreadSettings
from tasks.chunk import ChunkJob, ChunkResult, Failure
from tasks.errors import AccountingError, GeofixError, LakeError, StageRefused
from tasks.identity import code_version, digest, new_run_id, with_made_from
from tasks.lake import Lake
from tasks.ledger import Ledger
from tasks.outcome import Kept, Outcome, Rejected, Row, StageResult, Tick
from tasks.services import Connections
from tasks.services.budget_actor import shared_till
from tasks.services.pauses import Pauses
from tasks.spread import Died, Resources, is_async_function, spread

__all__ = [
    "ColumnStage",
    "Context",
    "Inputs",
    "Kept",
    "LakeError",
    "Outcome",
    "Rejected",
    "Resources",
    "Row",
    "Stage",
    "StageRefused",
    "StageResult",
    "Tick",
    "Usage",
    "Workshop",
    "digest",
    "pending",
    "run",
]

BATCH_ITEMS = 20_000  # a commit after so many items,
BATCH_SECONDS = 5.0  # or after so long


@dataclass(frozen=True)
class Workshop:
    """What a worker may open its bench with."""

    lake: Lake
    connections: Connections


@dataclass(frozen=True)
class Inputs:
    """The tables a stage reads, each at one version for the whole run."""

    lake: Lake
    versions: Mapping[str, int]
    _frames: dict[str, pl.DataFrame] = field(default_factory=dict, repr=False)

    def frame(self, table: str) -> pl.DataFrame:
        """The table's live rows at the run's version."""
        if table not in self.versions:
            raise GeofixError(f"this stage does not declare that it reads '{table}'")
        if table not in self._frames:
            self._frames[table] = self.lake.read(table, self.versions[table])
        return self._frames[table]


@dataclass(frozen=True)
class Stage:
    """Work item by item, spread over Ray."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]  # the last one marks an item as finished
    items: Callable[[Inputs, Any], pl.DataFrame]  # a unique text column `id`, and what `work` needs
    work: Callable[[Row, Any], Any]  # (item, bench) -> Kept | Rejected, sync or async; raises = failed, retried
    open: Callable[[Any, Workshop], Any]  # (settings, workshop) -> bench, once in each worker
    version: int = 1  # raise it when the output changes its meaning
    resources: Resources = Resources()
    services: tuple[str, ...] = ()  # whose keys must be there before anything starts
    keeps_history: bool = False  # rows of items that left the input stand, as models and snapshots do
    partial: bool = False  # the items are a part of the input only: nothing, failures included, ends by being absent
    identity: Callable[[Any], Any] | None = None  # the settings that matter; none: all that are not operational
    aside: tuple[str, ...] = ()  # item columns that `work` may use but that make no item another one


@dataclass(frozen=True)
class ColumnStage:
    """Work on whole tables, in Polars, in this process."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str]
    compute: Callable[[Inputs, Any], tuple[pl.DataFrame, pl.DataFrame]]  # kept (id + columns), rejects (id, reason, …)
    version: int = 1
    keeps_history: bool = False
    identity: Callable[[Any], Any] | None = None
    services: tuple[str, ...] = ()


@dataclass(frozen=True)
class Context:
    """What a run takes place in."""

    lake: Lake
    connections: Connections
    spread: SpreadSettings = SpreadSettings()
    progress: Callable[[Tick], None] = lambda tick: None
    ready: Callable[[], None] = lambda: None  # called before a stage with work to do asks its services
    flow_run_id: str = ""
    config_json: str = "{}"

    @cached_property
    def code_version(self) -> str:
        return code_version()


def run(stage: Stage | ColumnStage, settings: Any, context: Context) -> StageResult:
    """Run a stage over what its input tables hold now."""
    inputs, config_hash, ledger = _begin(stage, settings, context)
    runner = _run_columns if isinstance(stage, ColumnStage) else _run_items
    return runner(stage, settings, context, inputs, config_hash, ledger)  # type: ignore[arg-type]


def pending(stage: Stage, settings: Any, context: Context) -> pl.DataFrame:
    """The items that a run would work on now, with all their columns. Writes nothing."""
    inputs, config_hash, ledger = _begin(stage, settings, context)
    return ledger.unfinished(with_made_from(stage.items(inputs, settings), config_hash, stage.name, stage.aside))


def _begin(stage: Stage | ColumnStage, settings: Any, context: Context) -> tuple[Inputs, str, Ledger]:
    versions = {table: context.lake.version(table) for table in stage.reads}
    inputs = Inputs(context.lake, versions)
    identity = stage.identity(settings) if stage.identity else settings.identity()
    config_hash = digest(stage.name, stage.version, identity)
    ledger = Ledger(
        lake=context.lake,
        stage=stage.name,
        writes=stage.writes,
        run_id=new_run_id(stage.name),
        config_hash=config_hash,
        config_json=context.config_json,
        code_version=context.code_version,
        input_versions=versions,
        flow_run_id=context.flow_run_id,
    )
    return inputs, config_hash, ledger


def _run_items(
    stage: Stage, settings: Any, context: Context, inputs: Inputs, config_hash: str, ledger: Ledger
) -> StageResult:
    items = with_made_from(stage.items(inputs, settings), config_hash, stage.name, stage.aside)
    todo = ledger.unfinished(items)
    progress = _Progress(context.progress, stage.name, items.height, items.height - todo.height)
    connections, pauses = context.connections, None
    if todo.height and stage.services:
        context.ready()
        till = shared_till(context.lake, context.spread)
        connections, pauses = connections.sharing(till), Pauses(till)
    is_async = is_async_function(stage.work)
    job = ChunkJob(
        stage=stage.name,
        run_id=ledger.run_id,
        marker=stage.writes[-1],
        writes=stage.writes,
        work=stage.work,
        open_bench=functools.partial(stage.open, settings, Workshop(context.lake, connections)),
        concurrency=stage.resources.concurrency,
        secrets=context.connections.secrets(),
    )
    results = spread(
        todo,
        job.make_async if is_async else job.make_sync,
        context.spread,
        stage.resources,
        is_async=is_async,
        meanwhile=pauses.look if pauses else lambda: None,
    )
    batch = _Batch(ledger, progress)
    fatal: Failure | None = None
    try:
        for result in results:
            fatal = batch.add(_died(result) if isinstance(result, Died) else result)
            if fatal:
                break
    except BaseException:
        # Ctrl-C or a broken stage: what is finished is committed, so that nothing done is lost.
        results.close()
        batch.commit()
        ledger.close("interrupted", progress.counts, items.height, batch.usage)
        raise
    results.close()
    batch.commit()
    if fatal:
        ledger.close("failed", progress.counts, items.height, batch.usage)
        raise GeofixError(
            f"{stage.name} stopped: {context.connections.unaccepted_key(fatal.service, fatal.kind) or fatal.message}"
        )
    _check_accounts(stage.name, todo, batch)
    result = _finish(stage, items, ledger, progress, batch)
    return replace(result, paused_s=pauses.taken_s()) if pauses else result


def _run_columns(
    stage: ColumnStage, settings: Any, context: Context, inputs: Inputs, config_hash: str, ledger: Ledger
) -> StageResult:
    began_s = time.monotonic()
    kept, rejects = stage.compute(inputs, settings)
    kept = with_made_from(kept, config_hash, stage.name)
    rejects = with_made_from(rejects, config_hash, stage.name)
    items = pl.concat([kept.select("id", "made_from"), rejects.select("id", "made_from")])
    if items["id"].is_duplicated().any():
        raise GeofixError(f"stage {stage.name} both kept and rejected an item")
    todo = ledger.unfinished(items)
    progress = _Progress(context.progress, stage.name, items.height, items.height - todo.height, began_s)
    batch = _Batch(ledger, progress)
    batch.add(ledger.column_result(stage.writes[0], kept, rejects, todo))
    batch.commit()
    _check_accounts(stage.name, todo, batch)
    return _finish(stage, items, ledger, progress, batch)


def _finish(
    stage: Stage | ColumnStage, items: pl.DataFrame, ledger: Ledger, progress: "_Progress", batch: "_Batch"
) -> StageResult:
    ledger.sweep(
        items,
        not_done={f.item_id for f in batch.failed},
        keeps_history=stage.keeps_history,
        partial=isinstance(stage, Stage) and stage.partial,
    )
    standing, standing_rejects = ledger.standing()
    result = ledger.close(
        "done_with_failures" if batch.failed else "done",
        progress.counts,
        items.height,
        batch.usage,
        rejects=Counter(row["reason"] for row in batch.rejected),
        failures=Counter(failure.kind for failure in batch.failed),
        standing=standing,
        standing_rejects=standing_rejects,
        opened_at=batch.opened_at,
    )
    progress.finish()
    return result


def _check_accounts(stage: str, todo: pl.DataFrame, batch: "_Batch") -> None:
    """In = kept + rejected + failed, item by item."""
    seen = Counter([*batch.kept, *(row["item_id"] for row in batch.rejected), *(f.item_id for f in batch.failed)])
    wanted = set(todo["id"])
    lost, strange = wanted - seen.keys(), seen.keys() - wanted
    twice = [item for item, times in seen.items() if times > 1]
    if lost or strange or twice:
        raise AccountingError(
            f"{stage}: {len(wanted)} in, {len(batch.kept)} kept, {len(batch.rejected)} rejected, "
            f"{len(batch.failed)} failed: {len(lost)} lost, {len(strange)} from nowhere, {len(twice)} twice"
        )


def _died(died: Died) -> ChunkResult:
    return ChunkResult(failed=[Failure(item, "worker_died", died.message) for item in died.chunk["id"]])


class _Batch:
    """Results since the last commit, and the names of all items so far."""

    def __init__(self, ledger: Ledger, progress: "_Progress") -> None:
        self._ledger, self._progress = ledger, progress
        self._pending: list[ChunkResult] = []
        self._since = time.monotonic()
        self.kept: list[str] = []
        self.rejected: list[Row] = []
        self.failed: list[Failure] = []
        self.usage = Usage()
        self.opened_at: float | None = None  # when the first worker was ready

    def add(self, result: ChunkResult) -> Failure | None:
        """Take a result in; returns the failure that ought to stop the stage, if there is one."""
        fatal = next((failure for failure in result.failed if failure.fatal), None)
        # What stops the stage is no item's own failure: nothing of it is written down.
        result.failed = [failure for failure in result.failed if not failure.fatal]
        self._pending.append(result)
        self.usage += result.usage
        if result.opened_at is not None:
            self.opened_at = min(self.opened_at or result.opened_at, result.opened_at)
        enough = sum(r.items for r in self._pending) >= BATCH_ITEMS
        if enough or time.monotonic() - self._since > BATCH_SECONDS:
            self.commit()
        self._progress.add(result)
        return fatal

    def commit(self) -> None:
        self._ledger.commit(self._pending)
        for result in self._pending:
            self.kept += result.kept
            self.rejected += result.rejected
            self.failed += result.failed
        self._pending, self._since = [], time.monotonic()


class _Progress:
    def __init__(
        self, tell: Callable[[Tick], None], stage: str, total: int, skipped: int, began_s: float | None = None
    ) -> None:
        self._tell, self._start = tell, began_s or time.monotonic()
        self.counts = Tick(stage, total, skipped)
        self._starting_s = 0.0
        self._wall_start = time.time()
        tell(self.counts)

    def add(self, result: ChunkResult) -> None:
        now = self.counts
        if result.opened_at is not None and not self._starting_s:
            self._starting_s = max(0.0, result.opened_at - self._wall_start)
        self._set(
            now.kept + len(result.kept), now.rejected + len(result.rejected), now.failed + len(result.failed), False
        )

    def finish(self) -> None:
        self._set(self.counts.kept, self.counts.rejected, self.counts.failed, True)

    def _set(self, kept: int, rejected: int, failed: int, finished: bool) -> None:
        before = self.counts
        seconds = time.monotonic() - self._start
        self.counts = Tick(
            before.stage, before.total, before.skipped, kept, rejected, failed, seconds, finished, self._starting_s
        )
        self._tell(self.counts)
