"""A command that has nothing to do says so at once: without Prefect, Ray, workers or any server."""

from collections.abc import Sequence

from flows.display import display
from flows.order import REVIEW, STAGES, segments, services_of
from flows.session import Session
from flows.trained import trained_model
from schemas.config import Config, section_of
from tasks.lake import Lake
from tasks.review import newest_snapshot
from tasks.runtime.items.outcome import StageResult, Tick
from tasks.runtime.runner import idle_result
from tasks.runtime.snapshots import approved_snapshot, verdict_text


def idle_results(config: Config, stages: Sequence[str], lake: Lake, snapshot: str | None) -> list[StageResult] | None:
    """The results of a run of these stages if each of their steps has nothing to do, shown as a run shows them."""
    if config.flows.record_idle or config.spread.address or config.models.pools:
        return None
    session = Session(config, lake, wanted_snapshot=snapshot)
    results: list[StageResult] = []
    verdict = None
    if REVIEW in stages:
        newest = newest_snapshot(lake)
        goes_on = any(STAGES.index(stage) > STAGES.index(REVIEW) for stage in stages)
        if newest is None or (newest["status"] == "pending" and (goes_on or config.review.auto_approve)):
            return None
        if goes_on and newest["status"] != "approved":
            return None
        verdict, session.wanted_snapshot = verdict_text(newest), snapshot or newest["snapshot_id"]
    for stage, steps in segments(config, stages):
        if session.snapshot is None and any(step.snapshot for step in steps):
            session.snapshot = approved_snapshot(lake, session.wanted_snapshot)
        with trained_model(session, stage) as (own, ready):
            context = session.context(own, services_of(own, [stage]), ready, stages=[stage])
            for step in steps:
                result = idle_result(step, section_of(own, step.section or stage), context)
                if result is None:
                    return None
                results.append(result)
    for result in results:
        display.get().tick(Tick(result.stage, result.total, result.total, finished=True))
        if result.stage == REVIEW and verdict:
            display.get().say(verdict)
    return results
