"""How a stage is run.

The author of a stage says what it reads, what it writes, which items there are and what is done to one item. The
runner skips finished items, spreads the rest, commits in batches, keeps rejects with reasons and failures for retry,
and proves that in = kept + rejected + failed.

Guarantee: an item is finished when a live row of the stage's last table (or of `rejects`) carries its digest. A run
killed at any moment leaves, in each table, whole batches or nothing. The next run does the unfinished items again;
rows of items that are in a table already are exchanged in one commit, so none is written twice.

Rows have versions. A redone item's old rows stay as tombstones, and when the item is wanted again as it was, they are
revived instead of made again.
"""

import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import polars as pl

from schemas.errors import AccountingError, GeofixError, LakeError, StageRefused
from schemas.messages import Usage
from schemas.tables import TABLES
from tasks.runtime.calls import StageCalls
from tasks.runtime.items.chunk import ChunkJob, ChunkResult, Failure
from tasks.runtime.items.committer import BATCH_ITEMS, Batch, Progress
from tasks.runtime.items.identity import digest, is_unique, new_run_id, with_made_from
from tasks.runtime.items.ledger import Ledger, RunPlan
from tasks.runtime.items.outcome import Kept, Outcome, Rejected, Row, StageResult, Tick
from tasks.runtime.items.redo import Redo, items_to_run
from tasks.runtime.items.stage_lock import stage_lock
from tasks.runtime.on_ray.budget_actor import shared_rate_budget
from tasks.runtime.stage import (
    ColumnStage,
    Context,
    Inputs,
    Resources,
    Stage,
    WorkerSetup,
    chosen_resources,
    most_workers,
    open_inputs,
    services_asked,
)
from tasks.services.limits import Pauses

__all__ = [
    "ColumnStage",
    "Context",
    "Inputs",
    "Kept",
    "LakeError",
    "Outcome",
    "Redo",
    "Rejected",
    "Resources",
    "Row",
    "Stage",
    "StageRefused",
    "StageResult",
    "Tick",
    "Usage",
    "WorkerSetup",
    "digest",
    "pending",
    "run",
]


def run(stage: Stage | ColumnStage, settings: Any, context: Context) -> StageResult:
    """Run a stage over what its input tables hold now."""
    if context.spread.submits_jobs and isinstance(stage, Stage):
        if services_asked(stage, settings):
            context.ready()
        from tasks.runtime.on_ray.jobs import run_as_job

        inputs, config_hash, _ = _begin(stage, settings, context)
        return run_as_job(stage, context, config_hash, dict(inputs.versions))
    with stage_lock(context.lake, stage.name):
        inputs, config_hash, ledger = _begin(stage, settings, context)
        runner = _run_columns if isinstance(stage, ColumnStage) else _run_items
        return runner(stage, settings, context, inputs, config_hash, ledger)  # type: ignore[arg-type]


def idle_result(stage: Stage | ColumnStage, settings: Any, context: Context) -> StageResult | None:
    """What a run would return where it had nothing to do or to mend; None where it has. Writes nothing."""
    inputs, config_hash, ledger = _begin(stage, settings, context)
    if not ledger.has_ended_well():
        return None
    totals, total_rejects = ledger.totals()
    if isinstance(stage, ColumnStage):  # its rows follow from inputs and settings alone: none is computed
        total = sum(totals.values())
        if not ledger.is_unchanged(total):
            return None
    else:
        items = with_made_from(stage.items(inputs, settings), config_hash, stage.name, stage.unhashed)
        if not ledger.is_idle(ledger.plan_run(items), not (stage.keeps_history or context.is_part)):
            return None
        total = items.height
    return ledger.result("done", Tick(stage.name, total, total), total, totals=totals, total_rejects=total_rejects)


def pending(stage: Stage, settings: Any, context: Context) -> pl.DataFrame:
    """The items that a run would work on now, with all their columns. Writes nothing."""
    inputs, config_hash, ledger = _begin(stage, settings, context)
    return ledger.plan_run(with_made_from(stage.items(inputs, settings), config_hash, stage.name, stage.unhashed)).todo


def _begin(stage: Stage | ColumnStage, settings: Any, context: Context) -> tuple[Inputs, str, Ledger]:
    inputs = open_inputs(stage, context.lake, context.snapshot)
    identity = stage.identity(settings) if stage.identity else settings.identity()
    models = _models_of(stage, settings, context)
    words = stage.words(settings) if isinstance(stage, Stage) and stage.words else None
    shown = [part for part in (models, words) if part]
    config_hash = digest(stage.name, stage.version, [identity, *shown] if shown else identity)
    ledger = Ledger(
        lake=context.lake,
        stage=stage.name,
        writes=stage.writes,
        run_id=new_run_id(stage.name),
        config_hash=config_hash,
        config_json=context.config_json,
        code_version=context.code_version,
        input_versions=inputs.versions,
        flow_run_id=context.flow_run_id,
        snapshot_id=inputs.snapshot_id if stage.snapshot else None,
    )
    return inputs, config_hash, ledger


def _models_of(stage: Stage | ColumnStage, settings: Any, context: Context) -> dict[str, Any]:
    """What the settings say of the roles that a stage asks: with another model it makes other rows.

    Roles that are not named there are models of their own name, which the stage's settings hold already.
    """
    models = context.connections.chat.models
    if models is None or not isinstance(stage, Stage) or stage.roles is None:
        return {}
    named = models.settings.roles
    return {
        role: models.settings.role(role).model_dump(mode="json", exclude={"price"})  # of a pool: with its model
        for role in stage.roles(settings)
        if role in named
    }


def _run_items(
    stage: Stage, settings: Any, context: Context, inputs: Inputs, config_hash: str, ledger: Ledger
) -> StageResult:
    items = with_made_from(stage.items(inputs, settings), config_hash, stage.name, stage.unhashed)
    plan = _plan(stage, items, ledger, context, bool(services_asked(stage, settings)))
    todo = plan.todo
    del items  # of a refresh most are finished, and would stay in memory
    progress = Progress(context.progress, stage.name, plan.total, plan.total - todo.height)
    connections, pauses, calls = context.connections, None, None
    services = services_asked(stage, settings)
    if todo.height and services:
        context.ready()
        rate_budget = shared_rate_budget(context.lake, context.spread)
        models = connections.chat.models
        if models is not None and "chat" in services:
            calls = StageCalls(context.lake, models.settings, context.spread, stage.name, ledger.run_id)
        connections = connections.sharing(rate_budget, calls.log if calls else None)
        pauses = Pauses(rate_budget)
    shared = stage.share(inputs, settings) if stage.share and todo.height else None
    inputs.release()
    is_async = inspect.iscoroutinefunction(stage.work)
    resources = chosen_resources(stage.resources.under(settings), context.spread.stages.get(stage.name))
    job = ChunkJob(
        stage=stage.name,
        run_id=ledger.run_id,
        marker=stage.writes[-1],
        writes=stage.writes,
        work=stage.work,
        open_context=functools.partial(
            stage.open, settings, WorkerSetup(context.lake, connections, shared, context.spread.address is not None)
        ),
        concurrency=resources.concurrency,
        secrets=context.connections.secrets(),
    )
    if resources.workers == 0:
        results = _in_this_process(todo, job, progress)
    else:
        from tasks.runtime.on_ray.pool import spread  # and with it Ray, whose import takes a second

        results = spread(
            todo,
            job.make_async if is_async else job.make_sync,
            context.spread,
            resources,
            is_async=is_async,
            meanwhile=_meanwhile(pauses, calls, progress),
            most_workers=most_workers([connections.named(name) for name in services], resources.concurrency),
            tell=progress.waits_for,
        )
    batch = Batch(ledger, progress)
    fatal: Failure | None = None
    commit_rest = contextlib.ExitStack()
    commit_rest.callback(ledger.end_withdrawn)
    if calls is not None:
        commit_rest.callback(calls.commit)
    try:
        for result in results:
            if not isinstance(result, ChunkResult):
                died = [Failure(item, "worker_died", result.message) for item in result.chunk["id"]]
                result = ChunkResult(failed=died)  # of a worker that ended without an answer
            fatal = batch.add(result)
            if fatal:
                break
    except BaseException:
        # Ctrl-C or a bug: what is finished is committed, so that nothing done is lost.
        results.close()
        with commit_rest:
            batch.commit()
        ledger.close("interrupted", progress.counts, plan.total, batch.usage, batch.sent)
        raise
    results.close()
    with commit_rest:
        batch.commit()
    if fatal:
        ledger.close("failed", progress.counts, plan.total, batch.usage, batch.sent)
        why = context.connections.unaccepted_key(fatal.service, fatal.kind) or fatal.message
        raise GeofixError(f"{stage.name} stopped: {why}{_saved(progress.counts)}")
    _check_accounts(stage.name, todo, batch, progress.counts)
    if pauses is not None:
        progress.waited_s = pauses.taken_s()
    result = _finish(stage, settings, context, plan, ledger, progress, batch)
    return replace(result, paused_s=progress.waited_s)


def _in_this_process(todo: pl.DataFrame, job: ChunkJob, progress: Progress) -> Generator[Any, None, None]:
    if todo.height:
        progress.waits_for("working")
        yield job.make_sync()(todo)


def _run_columns(
    stage: ColumnStage, settings: Any, context: Context, inputs: Inputs, config_hash: str, ledger: Ledger
) -> StageResult:
    began_s = time.monotonic()
    kept, rejects = stage.compute(inputs, settings)
    inputs.release()
    kept = with_made_from(kept, config_hash, stage.name, stage.unhashed)
    rejects = with_made_from(rejects, config_hash, stage.name)
    items = pl.concat([kept.select("id", "made_from"), rejects.select("id", "made_from")])
    if not is_unique(items["id"]):
        raise GeofixError(f"step {stage.name} both kept and rejected an item")
    plan = _plan(stage, items, ledger, context, bool(services_asked(stage, settings)))
    progress = Progress(context.progress, stage.name, items.height, items.height - plan.todo.height, began_s)
    batch = Batch(ledger, progress)
    try:
        for result in ledger.column_results(stage.writes[0], kept, rejects, plan.todo, BATCH_ITEMS):
            batch.add(result)
    finally:
        batch.commit()
        ledger.end_withdrawn()
    del kept, rejects  # written; what follows reads its part of them from the lake
    _check_accounts(stage.name, plan.todo, batch, progress.counts)
    return _finish(stage, settings, context, plan, ledger, progress, batch)


def _plan(stage: Stage | ColumnStage, items: pl.DataFrame, ledger: Ledger, context: Context, asks: bool) -> RunPlan:
    """What is to be done, after the user agreed where much would be paid for again; what is there is revived."""
    plan = ledger.plan_run(items)
    paid = asks and TABLES[stage.writes[-1]].keeps_versions
    plan = replace(plan, todo=items_to_run(plan, ledger, paid, context.run, context.confirm))
    ledger.revive(plan.revive)
    return plan


def _finish(
    stage: Stage | ColumnStage,
    settings: Any,
    context: Context,
    plan: RunPlan,
    ledger: Ledger,
    progress: Progress,
    batch: Batch,
) -> StageResult:
    failed = pl.Series("item_id", batch.failed, dtype=pl.String)
    keeps = stage.keeps_history
    ledger.sweep(
        not_done=pl.concat([failed, plan.left_as_they_are.rename("item_id")]),
        keeps_history=keeps(settings, pl.col("item_id")) if callable(keeps) else keeps,
        is_part=context.is_part,
    )
    totals, total_rejects = ledger.totals()
    result = ledger.close(
        "done_with_failures" if len(failed) else "done",
        progress.counts,
        plan.total,
        batch.usage,
        batch.sent,
        batch.opened_at,
        rejects=dict(batch.reasons),
        failures=dict(batch.failures),
        totals=totals,
        total_rejects=total_rejects,
        redone=len(plan.redone) - len(plan.left_as_they_are),
        revived=plan.revived,
    )
    progress.finish()
    return result


def _check_accounts(stage: str, todo: pl.DataFrame, batch: Batch, counts: Tick) -> None:
    """In = kept + rejected + failed, item by item: the hashes of the ids that went in are those that came out."""
    wanted, seen = todo["id"].hash().sort(), batch.hashes().sort()
    if wanted.equals(seen):
        return
    lost, unexpected = (wanted.filter(~wanted.is_in(seen.implode())), seen.filter(~seen.is_in(wanted.implode())))
    raise AccountingError(
        f"{stage}: {len(wanted)} in, {counts.kept} kept, {counts.rejected} rejected, {counts.failed} failed: "
        f"{len(lost)} lost, {len(unexpected)} unexpected, {len(seen) - seen.n_unique()} twice"
    )


def _meanwhile(pauses: Pauses | None, calls: StageCalls | None, progress: Progress) -> Callable[[], None]:
    def check() -> None:
        if pauses is not None:
            pauses.log_new()
            progress.waited_s = pauses.known_s()
        if calls is not None:
            calls.commit_when_due()

    return check


def _saved(counts: Tick) -> str:
    """What a step that stops has finished."""
    if not counts.kept + counts.rejected:
        return ""
    left = counts.todo - counts.kept - counts.rejected
    return f" (so far {counts.kept:,} kept and {counts.rejected:,} rejected are saved, {left:,} are left)"
