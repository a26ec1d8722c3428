"""How Prefect runs the parts of the pipeline: one task a part, one artifact a stage."""

from collections.abc import Sequence
from contextvars import ContextVar

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run

from flows.artifacts import publish_report, stage_markdown
from flows.order import report_of, services_of, stages_of
from flows.session import Session
from flows.trained import trained_model
from schemas.errors import StageRefused
from tasks.review import auto_approve, newest_snapshot
from tasks.runtime.outcome import StageResult
from tasks.runtime.runner import run

# Prefect walks through a task's arguments looking for futures; a session is none of its business.
_session: ContextVar[Session] = ContextVar("session")


def run_parts(session: Session, parts: Sequence[str]) -> list[StageResult]:
    """Run parts in order. Between review and what follows, a snapshot must have been approved."""
    token = _session.set(session)
    try:
        for part in parts:
            run_part.with_options(task_run_name=part)(part)
            if part == "review" and part != parts[-1] and not _approved(session):
                break
    finally:
        _session.reset(token)
    return session.results


@task(name="part", cache_policy=NO_CACHE, persist_result=False)
def run_part(part: str) -> None:
    """Run every stage of a part, publishing what each did."""
    session = _session.get()
    with trained_model(session, part) as (config, ready):
        context = session.context(config, services_of([part]), ready, str(flow_run.id or ""))
        for stage in stages_of(part):
            result = run(stage, getattr(config, part), context)
            session.results.append(result)
            create_markdown_artifact(
                key=f"stage-{stage.name.replace('.', '-').replace('_', '-')}",
                markdown=stage_markdown(result, session.lake.uri),
                description=f"{stage.name}: in = kept + rejected + failed",
            )
        report = report_of(part)
        if report is not None:
            publish_report(part, report(session.lake, getattr(config, part)))


def _approved(session: Session) -> bool:
    """Whether the newest snapshot may be built on; the demo and unattended refreshes approve it by rule."""
    snapshot = newest_snapshot(session.lake)
    if snapshot is None:
        raise StageRefused("review made no snapshot: there is nothing to build on; look at the rejects of curate")
    if snapshot["status"] == "pending" and session.config.review.auto_approve:
        snapshot = auto_approve(session.lake, snapshot["snapshot_id"])
        session.display.say(f"snapshot {snapshot['snapshot_id']} approved by rule: every check passed")
    if snapshot["status"] != "approved":
        session.display.say(
            f"snapshot {snapshot['snapshot_id']} is {snapshot['status']}; read {snapshot['report']}, then "
            f"`geofix approve {snapshot['snapshot_id']}` and run again"
        )
    return bool(snapshot["status"] == "approved")
