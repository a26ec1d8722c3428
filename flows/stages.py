"""How Prefect runs the stages of the pipeline: one task for each step, with its retries, log, artifact and state."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from prefect import State, Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun
from prefect.runtime import deployment, flow_run, task_run
from prefect.tasks import exponential_backoff

from flows.artifacts import ProgressArtifact, publish_counts, publish_report, publish_step
from flows.decision import conclude_review
from flows.order import REVIEW, STAGES, report_of, segments, services_of
from flows.recording import run_task
from flows.session import Session
from flows.states import StepOutage, is_outage, merged, outages_of, step_state
from flows.trained import ModelServers, trained_model
from schemas.config import section_of
from tasks.review import newest_snapshot, renew_site
from tasks.review.suites import require_suites
from tasks.runtime.items.outcome import StageResult, Tick
from tasks.runtime.runner import ColumnStage, Stage, run
from tasks.runtime.snapshots import approved_snapshot, find_snapshot
from tasks.runtime.stage import Context


@dataclass(frozen=True)
class _Work:
    """What a step's task works on."""

    session: Session
    step: Stage | ColumnStage
    settings: Any
    context: Context
    retries: int


def run_stages(session: Session, stages: Sequence[str]) -> list[StageResult]:
    """Run stages in order; returns the results of the session so far."""
    parts = segments(session.config, stages)
    with contextlib.closing(ModelServers(session)) as model_servers:
        for number, (stage, steps) in enumerate(parts):
            following = parts[number + 1][0] if number + 1 < len(parts) else None
            _run_stage(session, stage, steps, model_servers, following)
    publish_counts(session.results)
    return session.results


def _run_stage(
    session: Session,
    stage: str,
    steps: Sequence[Stage | ColumnStage],
    model_servers: ModelServers,
    following: str | None,
) -> None:
    if session.snapshot is None and any(step.snapshot for step in steps):
        session.snapshot = approved_snapshot(session.lake, session.wanted_snapshot)
    if session.pools is not None:
        session.pools.put_away_before(stage)
    with trained_model(session, stage, model_servers) as (config, ready):
        context = session.context(config, services_of(config, [stage]), ready, str(flow_run.id or ""), [stage])
        if stage == "train" and following is not None:
            context = _importing_ahead(context, model_servers, following)
        for step in steps:
            settings = section_of(config, step.section or stage)
            _run_step(session, step, settings, with_pools(session, step, settings, context))
        report = report_of(stage)
        if report is not None:
            session.display.phase(f"{stage}: drawing its report")
            publish_report(stage, report(session.lake, getattr(config, stage)), session.report_address)
    if session.pools is not None:
        session.pools.put_away_after(stage)
    if stage == REVIEW:
        conclude_review(session)
    _renew_site(session, stage)


def _importing_ahead(context: Context, model_servers: ModelServers, following: str) -> Context:
    """The context in which servers for the next stage start once a model is being trained."""

    def tick(tick: Tick) -> None:
        context.progress(tick)
        if tick.total and not tick.finished:
            model_servers.import_for(following)

    return replace(context, progress=tick)


def with_pools(session: Session, step: Stage | ColumnStage, settings: Any, context: Context) -> Context:
    """The context in which the pools that the step's roles name are up before its services are first queried."""
    roles = step.roles(settings) if isinstance(step, Stage) and step.roles else ()
    pools, models = session.pools, session.config.models
    plans = pools.plans({models.role(role).endpoint for role in roles}) if pools is not None else []
    if pools is None or not plans:
        return context

    def ready() -> None:
        context.ready()
        pools.ensure(plans)

    return replace(context, ready=ready)


def _renew_site(session: Session, stage: str) -> None:
    """The review site shows what the stage made; only pages whose tables changed are made again."""
    if STAGES.index(stage) < STAGES.index(REVIEW):
        return
    chosen = session.snapshot
    row = find_snapshot(session.lake, chosen.snapshot_id) if chosen else newest_snapshot(session.lake)
    if row is not None:
        session.display.phase("review site: drawing what changed")
        renew_site(session.lake, row)


def _run_step(session: Session, step: Stage | ColumnStage, settings: Any, context: Context) -> None:
    session.display.phase(f"{step.name}: reading its input")
    flows = session.config.flows
    retries = flows.retries if deployment.id else 0  # a terminal ends with exit code 3 instead of waiting
    task = run_step.with_options(
        task_run_name=step.name, retries=retries, retry_delay_seconds=exponential_backoff(flows.retry_delay_s)
    )
    try:
        run_task(task, _Work(session, step, settings, context, retries))
    finally:
        if session.run_log is not None:
            session.run_log.task_run_id = None


def _may_retry(of: Task[..., Any], attempt: TaskRun, state: State[Any]) -> bool:
    return is_outage(state.data)


@task(name="step", cache_policy=NO_CACHE, persist_result=False, retry_condition_fn=_may_retry)
def run_step(work: Any) -> State[StageResult]:
    """Run one step; outages are retried, failed rows show in the state."""
    session, step = work.session, work.step.name
    if session.run_log is not None:
        session.run_log.task_run_id = str(task_run.id or "") or None
    result = run(work.step, work.settings, _with_progress(work.context, ProgressArtifact(step)))
    if session.results and session.results[-1].stage == step:  # a retry, after rows of the attempt before failed
        result = merged(session.results.pop(), result)
    session.results.append(result)
    if result.kept:  # rows were written: hold them to their tables' contracts before anything is built on them
        session.display.phase(f"{step}: checking its rows with Great Expectations")
        require_suites(session.lake, result.output_versions, result.run_id)
    publish_step(result, session.lake.uri)
    outages = outages_of(result)
    if outages and work.retries and task_run.run_count <= work.retries:
        raise StepOutage(f"{outages:,} rows of {step} failed because a service is out or over its limit")
    tell_exhausted(session, result)
    return step_state(result)


def _with_progress(context: Context, bar: ProgressArtifact) -> Context:
    def tick(tick: Tick) -> None:
        context.progress(tick)
        bar.tick(tick)

    return replace(context, progress=tick)


def tell_exhausted(session: Session, result: StageResult) -> None:
    """Tell the webhook when rows failed for want of a quota."""
    over = result.failures.get("quota", 0)
    if over:
        session.notify(
            "exhausted_budget", f"{over:,} rows of {result.stage} failed because a quota or a day's budget is used up"
        )
