"""The reviewer's decision about a snapshot, for which a deployment of the pipeline suspends.

The flow run itself remembers what it waits for: the key of its pause names the lake and the snapshot. It is resumed
from the form in Prefect's UI, through the API, or by `geofix approve` and `geofix reject`.
"""

import hashlib
import itertools
import logging
from collections.abc import Sequence
from typing import Any, Literal

import polars as pl
from prefect import State, suspend_flow_run
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateName
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import SetStateStatus
from prefect.context import FlowRunContext
from prefect.exceptions import Pause
from prefect.input import RunInput
from prefect.states import Completed
from pydantic import Field

from flows.artifacts import markdown_place, publish_verdict
from flows.order import REVIEW
from flows.session import Session
from flows.states import REJECTED, WAITING
from schemas.errors import StageRefused
from tasks.lake import Lake
from tasks.review import ReviewRefused, approve, auto_approve, newest_snapshot, reject
from tasks.runtime.items.outcome import StageResult
from tasks.runtime.snapshots import checks_text, verdict_text

logger = logging.getLogger("geofix.flows")


class Decision(RunInput):
    """The form of a flow run that waits for the reviewer."""

    decision: Literal["approve", "reject"] = Field(  # without a default: a form that is sent unread decides nothing
        title="Decision", description="approve: training may use this snapshot, the run goes on; reject: it ends here"
    )
    why: str = Field(title="Reason", description="the reason, kept with the snapshot", min_length=1)
    reviewer: str = Field(title="Reviewer", description="who decides, kept with the snapshot", min_length=1)
    overrule: bool = Field(
        False, title="Overrule failed checks", description="needed to approve a snapshot that fails a check"
    )


def suspended_for(lake: Lake) -> str | None:
    """The snapshot for which this flow run was suspended before, if it was: its earlier stages are done then."""
    run = _this_run()
    keys = (run.empirical_policy.pause_keys or set()) if run is not None else set()
    mark = _key(lake)
    return next((key.removeprefix(mark).rpartition("-")[0] for key in sorted(keys) if key.startswith(mark)), None)


def failed_before(lake: Lake, results: Sequence[StageResult]) -> dict[str, int]:
    """Failed rows by step from before this flow run was suspended, which another process ran."""
    run = _this_run()
    if run is None or not suspended_for(lake):
        return {}
    mine = pl.col("flow_run_id") == str(run.id), ~pl.col("stage").is_in([result.stage for result in results])
    last = lake.read("runs").filter(*mine).sort("finished_at").group_by("stage", maintain_order=True).last()
    return dict(last.filter(pl.col("failed") > 0).select("stage", "failed").iter_rows())


def conclude_review(session: Session) -> None:
    """Decide about the snapshot by rule, if one is set, and say the verdict: here, and nowhere else."""
    snapshot = newest_snapshot(session.lake)
    if snapshot is None:
        return
    if session.config.review.auto_approve:
        snapshot = auto_approve(session.lake, snapshot["snapshot_id"])
    _say_verdict(session, snapshot)
    if snapshot["status"] == "pending" and any(result.kept for result in session.results if result.stage == REVIEW):
        # The webhook hears of a snapshot once: when it was made.
        session.notify(
            "waiting_snapshot",
            f"snapshot {snapshot['snapshot_id']} waits for review: {session.report_address(snapshot['report'])}",
            snapshot["snapshot_id"],
        )


def _say_verdict(session: Session, snapshot: dict[str, Any]) -> None:
    verdict = verdict_text(snapshot)
    session.display.say(verdict)
    publish_verdict(verdict, session.report_address(snapshot["report"]))


def snapshot_approved(session: Session) -> State[list[StageResult]] | None:
    """None when the snapshot may be built on, else the state in which the run ends. Suspends a deployment's run."""
    snapshot = _snapshot(session.lake)
    run = _this_run()
    if snapshot["status"] == "pending" and run is not None and run.deployment_id and not run.parent_task_run_id:
        snapshot = _decided(session, snapshot)
        _say_verdict(session, snapshot)
    name, status = snapshot["snapshot_id"], snapshot["status"]
    if status == "approved":
        # The one just reviewed goes on, which need not be the newest one that is approved.
        session.wanted_snapshot = session.wanted_snapshot or name
        return None
    if status == "rejected":
        return Completed(name=REJECTED, message=verdict_text(snapshot), data=session.results)
    force = "" if snapshot["checks_passed"] else " --force --why REASON"
    todo = f"read {session.report_address(snapshot['report'])}, then `geofix approve {name}{force}` and run again"
    session.display.say(todo)
    return Completed(name=WAITING, message=f"{verdict_text(snapshot)}; {todo}", data=session.results)


def resume_waiting(lake: Lake, snapshot: dict[str, Any]) -> list[str]:
    """Resume the flow runs that are suspended for this snapshot, which is decided; returns their names."""
    decision = {
        "decision": "approve" if snapshot["status"] == "approved" else "reject",
        "why": snapshot["why"] or f"{snapshot['status']} with geofix",
        "reviewer": snapshot["reviewer"],
        "overrule": not snapshot["checks_passed"],
    }
    suspended = FlowRunFilter(state=FlowRunFilterState(name=FlowRunFilterStateName(any_=["Suspended"])))
    resumed = []
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=suspended):
            key = (run.state.state_details.pause_key if run.state else None) or ""
            if key.startswith(_key(lake, snapshot["snapshot_id"])):
                answer = client.resume_flow_run(run.id, run_input=decision)
                if answer.status == SetStateStatus.ACCEPT:
                    resumed.append(run.name)
                else:
                    logger.warning("flow run %s was not resumed: %s", run.name, getattr(answer.details, "reason", ""))
    return resumed


def _decided(session: Session, snapshot: dict[str, Any]) -> dict[str, Any]:
    """The snapshot's row after the reviewer's decision; asks again when the decision cannot be taken as it is."""
    refused = ""
    for number in itertools.count(1):
        form = Decision.with_initial_data(description=_description(session, snapshot, refused))
        try:
            decision = suspend_flow_run(
                wait_for_input=form,
                timeout=round(session.config.flows.review_timeout_h * 3600),
                key=f"{_key(session.lake, snapshot['snapshot_id'])}{number}",
            )
        except Pause as pause:
            _say_what_for(pause, session, snapshot)
            raise
        snapshot = _snapshot(session.lake)
        if snapshot["status"] != "pending":  # decided with `geofix approve` or `geofix reject`
            break
        try:
            return _decide(session.lake, snapshot["snapshot_id"], decision)
        except ReviewRefused as error:
            refused = str(error)
            session.display.say(f"the decision was not taken: {refused}")
    return snapshot


def _say_what_for(pause: Pause, session: Session, snapshot: dict[str, Any]) -> None:
    """Give the suspended state a message: Prefect's function for it takes none."""
    run, state = _this_run(), pause.state
    if run is None or state is None:
        return
    message = (
        f"snapshot {snapshot['snapshot_id']} waits for a reviewer; its report: "
        f"{session.report_address(snapshot['report'])}"
    )
    with get_client(sync_client=True) as client:
        now = client.read_flow_run(run.id).state
        if now is not None and now.id == state.id:  # or it was resumed meanwhile
            client.set_flow_run_state(run.id, state.model_copy(update={"message": message}), force=True)


def _decide(lake: Lake, snapshot_id: str, decision: Decision) -> dict[str, Any]:
    if decision.decision == "approve":
        return approve(lake, snapshot_id, decision.reviewer, decision.why, force=decision.overrule)
    return reject(lake, snapshot_id, decision.reviewer, decision.why)


def _snapshot(lake: Lake) -> dict[str, Any]:
    """The snapshot this run was suspended for, or else the newest."""
    awaited = suspended_for(lake)
    if awaited is None:
        snapshot = newest_snapshot(lake)
    else:
        rows = lake.read("snapshots")
        snapshot = next((row for row in rows.iter_rows(named=True) if row["snapshot_id"] == awaited), None)
    if snapshot is None:
        raise StageRefused("review made no snapshot: there is nothing to build on; look at the rejects of curate")
    return snapshot


def _description(session: Session, snapshot: dict[str, Any], refused: str) -> str:
    refusal = f"\n\nThe last decision was not taken: {refused}" if refused else ""
    report = markdown_place(session.report_address(snapshot["report"]))
    return f"Snapshot `{snapshot['snapshot_id']}` {checks_text(snapshot)}. Its report: {report}{refusal}"


def _this_run() -> FlowRun | None:
    context = FlowRunContext.get()
    return context.flow_run if context is not None else None


def _key(lake: Lake, snapshot_id: str = "") -> str:
    """The beginning of the pause's key: names the lake, and the snapshot if given."""
    where = hashlib.sha256(lake.uri.encode()).hexdigest()[:12]
    return f"review-{where}-" + (f"{snapshot_id}-" if snapshot_id else "")
