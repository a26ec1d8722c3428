"""A table of photos into the lake: `geofix ingest FILE`, and the flow it runs."""

from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run

from flows.artifacts import publish_step
from flows.options import RunOptions
from flows.recording import run_task
from flows.session import Session, open_session
from flows.states import state_of
from tasks.ingest import IngestResult, Survey, check_dataset, dataset_name, ingest_table, survey_table
from tasks.plan.strata import PlanStrata
from tasks.review.suites import require_suites

# The command has looked at the table before it starts anything. A survey cannot be a flow's parameter: Prefect stores
# those.
surveyed: ContextVar[Survey | None] = ContextVar("surveyed", default=None)


@flow(name="ingest")
def ingest(file: str, options: RunOptions = RunOptions()) -> IngestResult:
    """Bring in the photos of a table. A deployment may run it on a table that grows.

    Args:
        file: Path on the worker of a table (CSV, TSV, JSON lines, Parquet) or of a folder of photos.
        options: Which configuration to use: recipe, profile, file, lake and single settings.
    """
    with open_session(options, []) as session:
        settings = session.config.ingest
        known = surveyed.get()
        survey = known or survey_table(Path(file).expanduser(), settings, PlanStrata(session.config.plan))
        dataset = dataset_name(survey.table.path, settings)
        if known is None:
            check_dataset(session.lake, survey, dataset, settings, session.config.plan)
        bring_in = _bring_in.with_options(task_run_name=f"ingest {dataset}")
        work = _Work(session, survey, dataset)
        run_task(bring_in, work)
        assert work.result is not None  # or the task would have raised
        return _with_state(work.result)


@dataclass
class _Work:
    """What the task works on, and what comes of it: a task that returns a state gives the flow the state alone."""

    session: Session
    found: Survey
    dataset: str
    result: IngestResult | None = None


@task(name="ingest", cache_policy=NO_CACHE, persist_result=False)
def _bring_in(work: Any) -> IngestResult:
    session, config = work.session, work.session.config
    context = session.context(config, (), session.ready, str(flow_run.id or ""))
    result = ingest_table(work.found, work.dataset, config.ingest, config.plan, context)
    session.results.append(result.stage)
    require_suites(session.lake, result.stage.output_versions, result.stage.run_id)
    work.result = result
    publish_step(result.stage, session.lake.uri, f"\nRefused and odd rows: `{result.report.path}`\n")
    return _with_state(result)


def _with_state(result: IngestResult) -> IngestResult:
    """The state that says whether rows failed: Prefect makes it the run's and hands its data to the caller."""
    return cast("IngestResult", state_of(result, [result.stage]))
