"""A stage as a job on a Ray cluster, so that the work goes on without this process and a retried flow finds it again.

The job's id follows from its work: lake, stage, settings and the versions of the tables it reads. A job of that id that
runs is followed; otherwise a new attempt is submitted. It runs `python -m tasks.runtime.on_ray.job` on the cluster's
head, in whose environment the services' keys must be: they are not sent.
"""

import json
import logging
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Protocol

import polars as pl

from schemas.errors import GeofixError, Outage
from schemas.messages import Usage
from tasks.lake import Lake
from tasks.runtime.items.identity import digest
from tasks.runtime.items.outcome import StageResult, Tick
from tasks.runtime.stage import Context, Stage
from tasks.services.meter import Tally

LOOK_EVERY_S = 1.0
SUBMIT_S = 60.0  # a cluster that has just started takes no job until its agents are up
SAFE_PATH = "PYTHONSAFEPATH"
CONFIG, FLOW_RUN, SNAPSHOT = "GEOFIX_JOB_CONFIG", "GEOFIX_JOB_FLOW_RUN", "GEOFIX_JOB_SNAPSHOT"  # environment
TICK, RESULT = "geofix-tick", "geofix-result"  # how lines of the job's output begin

logger = logging.getLogger("geofix.ray")


class Jobs(Protocol):
    """What is used of Ray's JobSubmissionClient."""

    def submit_job(self, *, entrypoint: str, submission_id: str, runtime_env: dict[str, Any]) -> str: ...
    def get_job_status(self, job_id: str) -> Any: ...
    def get_job_logs(self, job_id: str) -> str: ...
    def list_jobs(self) -> list[Any]: ...


def job_id(lake: str, stage: str, config_hash: str, versions: dict[str, int]) -> str:
    """The id of the job that does this work."""
    return f"geofix-{stage.replace('.', '-').replace('_', '-')}-{digest(lake, stage, config_hash, versions)}"


def run_as_job(
    stage: Stage, context: Context, config_hash: str, versions: dict[str, int], client: Jobs | None = None
) -> StageResult:
    """Run the stage as a job, or follow the one that does it already; its result."""
    client = client or _client(str(context.spread.address))
    name = job_id(context.lake.uri, stage.name, config_hash, versions)
    running, attempts = _attempts(client, name)
    if running is not None:
        logger.warning("%s: following job %s, which does this work already", stage.name, running)
    else:
        running = name if not attempts else f"{name}-{attempts + 1}"
        _submit(client, running, stage, context)
    result: StageResult | None = None
    for line in _lines(client, running):  # to its end: a next command must not follow a job that is about to end
        kind, _, text = line.partition(" ")
        if kind == TICK:
            context.progress(_read_tick(json.loads(text)))
        elif kind == RESULT:
            result = _read_result(context.lake, json.loads(text))
        elif line.startswith("geofix: "):
            logger.warning("%s", line.removeprefix("geofix: "))
    if result is not None:
        return result
    lines = [line for line in client.get_job_logs(running).splitlines() if line.strip()]
    raise GeofixError(
        f"{stage.name}: job {running} on {context.spread.address} ended without a result: "
        f"{lines[-1][:300] if lines else 'it printed nothing'}; `ray job logs {running}` shows more"
    )


def _client(address: str) -> Jobs:
    from ray.job_submission import JobSubmissionClient

    try:
        client: Jobs = JobSubmissionClient(address)
    except (ConnectionError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise Outage(
            f"spread.address: no dashboard of a Ray cluster answers at '{address}' ({reason}): start the cluster with "
            "its dashboard, or give its right address"
        ) from error
    return client


def _attempts(client: Jobs, name: str) -> tuple[str | None, int]:
    """The attempt at this work that is not over, and how many there were."""
    statuses = {job.submission_id: job.status for job in client.list_jobs() if _is_attempt(job.submission_id, name)}
    running = [attempt for attempt, status in statuses.items() if not status.is_terminal()]
    return (running[-1] if running else None), len(statuses)


def _is_attempt(submission_id: str | None, name: str) -> bool:
    return submission_id is not None and (submission_id == name or submission_id.rpartition("-")[0] == name)


def _submit(client: Jobs, name: str, stage: Stage, context: Context) -> None:
    module = stage_home(stage)
    # Ray runs it by a shell of the head, whose Python may lie elsewhere than ours.
    command = f'"${{GEOFIX_PYTHON:-python}}" -m tasks.runtime.on_ray.job {shlex.join([module, stage.name])}'
    config = json.loads(context.config_json) | {"lake": context.lake.uri}  # a relative path is none on the head
    environment = {CONFIG: json.dumps(config), FLOW_RUN: context.flow_run_id, SAFE_PATH: "1"}
    if context.snapshot is not None:
        environment[SNAPSHOT] = context.snapshot.snapshot_id
    until_s = time.monotonic() + SUBMIT_S
    while True:
        try:
            client.submit_job(entrypoint=command, submission_id=name, runtime_env={"env_vars": environment})
            break
        except RuntimeError as error:  # Ray's client raises nothing else for what its server answers
            if any(job.submission_id == name for job in client.list_jobs()):
                break  # it was taken, and only the answer was lost
            if time.monotonic() > until_s:
                reason = " ".join(str(error).split())[:300]
                raise Outage(f"{stage.name}: the cluster at {context.spread.address} takes no job: {reason}") from error
            time.sleep(LOOK_EVERY_S)
    logger.warning(
        "%s: submitted as job %s; it goes on if this command ends, and the same command follows it", stage.name, name
    )


def _lines(client: Jobs, name: str) -> Iterator[str]:
    """The job's output, line by line, until it is over."""
    seen = 0
    while True:
        is_over = client.get_job_status(name).is_terminal()  # before the log: its last lines come before the end
        text = client.get_job_logs(name)
        complete_chars = len(text) if is_over else text.rfind("\n") + 1
        yield from text[seen:complete_chars].splitlines()
        seen = max(seen, complete_chars)
        if is_over:
            return
        time.sleep(LOOK_EVERY_S)


def _read_tick(told: dict[str, Any]) -> Tick:
    sent = Tally(**{name: Counter(counts) for name, counts in told.pop("sent").items()})
    return Tick(**told | {"sent": sent, "usage": Usage(**told.pop("usage"))})


def _read_result(lake: Lake, result: dict[str, Any]) -> StageResult:
    """What a job printed of its result, if the lake's table of runs has it as well."""
    runs = lake.read("runs").filter(pl.col("run_id") == result["run_id"])
    if runs.is_empty() or runs["kept"][0] != result["kept"]:
        raise GeofixError(f"run {result['run_id']} of the job is not in '{lake.uri}': the cluster needs the same lake")
    return StageResult(**{**result, "usage": Usage(**result["usage"])})


def stage_home(stage: Stage) -> str:
    """The module from which a process elsewhere gets the stage by its name."""
    for name in (stage.open.__module__, f"tasks.{stage.name.partition('.')[0]}"):
        module = sys.modules.get(name)
        if module is not None and any(other.name == stage.name for other in stages_in(module)):
            return name
    raise GeofixError(f"{stage.name} cannot run as a job: give spread.address as host:port of the cluster's head")


def stages_in(module: ModuleType) -> Iterator[Stage]:
    """The stages that a module holds, alone or in a tuple; the `STAGES` of a package may be imported only now."""
    for value in [*vars(module).values(), getattr(module, "STAGES", ())]:
        yield from (
            candidate
            for candidate in (value if isinstance(value, tuple | list) else (value,))
            if isinstance(candidate, Stage)
        )
