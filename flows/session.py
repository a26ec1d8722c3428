"""What the steps of one run share: configuration, lake, services, display, log."""

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote
from uuid import UUID

from flows.asked import asked_lines
from flows.deployment import keys_from_blocks, require_absolute_lake
from flows.display import Display, display
from flows.notify import notify
from flows.offered import check_models, refuse_unpriced
from flows.options import RunOptions
from flows.order import REVIEW, STAGES, check_of, check_step_names, roles_of, services_of, steps_of
from flows.served_reports import served_address
from flows.servers import check_offline_world, offline_world
from schemas.config import Config
from schemas.extras import require_extras
from schemas.settings.notify import Event
from tasks.lake import Lake
from tasks.runtime.items.outcome import StageResult, Tick
from tasks.runtime.on_ray.start import check_temporary_folder
from tasks.runtime.runner import Context
from tasks.runtime.snapshots import Snapshot, approved_snapshot
from tasks.runtime.stage import ColumnStage, refuse_second_writers
from tasks.services import MissingKeys, connect
from tasks.services.errors import safe_text
from tasks.services.meter import ENDPOINTS, is_tracing

if TYPE_CHECKING:
    from flows.metrics import RunMetrics
    from flows.pools import RunPools
    from flows.run_log import RunLog


running_flow: ContextVar[str] = ContextVar("running_flow", default="")  # the name of a flow that Prefect does not run


@dataclass
class Session:
    """One run of one or more stages."""

    config: Config
    lake: Lake
    ready: Callable[[], None] = lambda: None  # called before the services are first queried
    run_log: "RunLog | None" = None
    results: list[StageResult] = field(default_factory=list)
    wanted_snapshot: str | None = None  # an id, or its beginning
    snapshot: Snapshot | None = None  # chosen once for all stages after the review
    pools: "RunPools | None" = None  # none: no stage is run
    metrics: "RunMetrics | None" = None  # none: nowhere shown

    @property
    def display(self) -> Display:
        return display.get()

    @property
    def state(self) -> Path:
        """Where servers and Prefect keep what they need."""
        return self.lake.state

    def context(
        self,
        config: Config,
        services: Collection[str],
        ready: Callable[[], None],
        flow_run_id: str = "",
        stages: Sequence[str] = (),
    ) -> Context:
        """What the runner runs steps of these stages in; the named services and the stages' models need their keys."""
        roles = [role for _, role in roles_of(config, stages)]
        return Context(
            lake=self.lake,
            connections=connect(config.services, os.environ, services, config.models, roles),
            spread=config.spread,
            run=config.run,
            progress=self._tick,
            ready=ready,
            confirm=lambda redo: self.display.confirm(str(redo)),
            flow_run_id=flow_run_id,
            config_json=config.model_dump_json(),
            snapshot=self.snapshot,
        )

    def _tick(self, tick: Tick) -> None:
        self.display.tick(tick)
        if self.metrics is not None:
            self.metrics.tick(tick)

    def report_address(self, key: str) -> str:
        """Where people open a file of the lake's `reports`: on a web server that shows them, else where it lies."""
        url = self.config.flows.reports_url or served_address(self.lake)
        return f"{url.rstrip('/')}/{quote(key.removeprefix('reports/'))}" if url else self.lake.blobs.uri(key)

    def notify(self, event: Event, message: str, snapshot_id: str | None = None) -> None:
        """Tell the webhook, with the counts so far."""
        _notify(self.config, event, message, self.results, snapshot_id)


def check_before(config: Config, stages: Sequence[str]) -> None:
    """Say which keys these stages miss and what is wrong with their input before anything is started or written."""
    check_step_names(config.spread.stages)
    if any(not isinstance(step, ColumnStage) for stage in stages for step in steps_of(stage)):
        check_temporary_folder(config.spread)
    roles = [role for _, role in roles_of(config, stages)]
    connect(config.services, os.environ, services_of(config, stages), config.models, roles)
    for stage in stages:
        check = check_of(stage)
        if check is not None:
            check(getattr(config, stage))
    check_offline_world(config.offline)
    check_models(config, stages)
    refuse_unpriced(config, stages)


def check_writers() -> None:
    """Refuse two steps of the pipeline that write one table. Imports every stage, so an idle command leaves it out."""
    refuse_second_writers(step for stage in STAGES for step in steps_of(stage))


def check_snapshot(config: Config, stages: Sequence[str], wanted: str | None) -> None:
    """Say that stages after the review have no approved snapshot to work on, unless a review comes before them."""
    if REVIEW not in stages and any(step.snapshot for stage in stages for step in steps_of(stage)):
        approved_snapshot(Lake(config.lake, read_only=True), wanted)


@contextlib.contextmanager
def open_session(options: RunOptions, stages: Sequence[str]) -> Iterator[Session]:
    """Configuration checked, keys there, lake writable, services reachable; a failure is told to the webhook."""
    from flows.metrics import run_metrics
    from flows.pools import RunPools
    from flows.run_log import run_log  # imports prefect, whose settings a command has to make first

    options, deployed = _over_deployment(options)
    config = options.resolve()
    _label_run(options, config)
    results: list[StageResult] = []
    if is_tracing():
        require_extras(f"{ENDPOINTS[0]} is set: sending traces", "trace")
    with run_log(display.get(), config.observe.log_format) as log:
        try:
            if deployed:
                keys_from_blocks(config)
            check_writers()
            check_before(config, stages)
            for line in asked_lines(config, stages):
                display.get().say(line)
            lake = Lake(config.lake)
            several = len(stages) > 1  # of which one will need the world
            with offline_world(config, lake.state / "offline-world.log", early=several) as (reachable, ready):
                pools = RunPools(reachable, lake, stages)
                pools.check()
                with contextlib.closing(pools), run_metrics(config, lake, **_run_names()) as metrics:
                    if metrics is not None:
                        metrics.watch_pools(pools.up)
                    own, snapshot = pools.configured(reachable), options.snapshot
                    yield Session(own, lake, ready, log, results, snapshot, pools=pools, metrics=metrics)
        except Exception as error:
            _notify(config, "failure", f"{type(error).__name__}: {error}", results)
            raise


def _run_names() -> dict[str, str]:
    from prefect.runtime import flow_run

    return {"flow": flow_run.flow_name or running_flow.get(), "flow_run_id": str(flow_run.id or "")}


def _label_run(options: RunOptions, config: Config) -> None:
    """Show the flow run by flow, lake and date, and with the options it works with, its deployment's among them."""
    from prefect.client.orchestration import get_client
    from prefect.runtime import flow_run

    if not flow_run.id:
        return
    lake = "/".join(config.lake.rstrip("/").split("/")[-2:])
    parameters = {**(flow_run.parameters or {}), "options": options.model_dump(exclude_defaults=True)}
    name = f"{flow_run.flow_name} {lake} {flow_run.scheduled_start_time:%Y-%m-%d %H:%M}"
    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(flow_run.id), name=name, parameters=parameters)


def _over_deployment(options: RunOptions) -> tuple[RunOptions, bool]:
    """The options of a flow run over those of its deployment, and whether it has one."""
    from prefect.client.orchestration import get_client
    from prefect.runtime import deployment

    if not deployment.id:
        return options, False
    with get_client(sync_client=True) as client:  # `deployment.parameters` are the flow run's own
        deployed = client.read_deployment(deployment.id).parameters
    options = options.on_top_of(deployed.get("options") or {})
    require_absolute_lake(options)
    return options, True


def _notify(
    config: Config, event: Event, message: str, results: Sequence[StageResult], snapshot_id: str | None = None
) -> None:
    from prefect.runtime import flow_run

    secrets: tuple[str, ...] = ()
    with contextlib.suppress(MissingKeys):
        secrets = connect(config.services, os.environ, (), config.models, ()).secrets()
    notify(
        config.notify,
        event,
        safe_text(message, secrets, 500),
        flow=flow_run.flow_name or running_flow.get(),
        flow_run_id=flow_run.id,
        lake=config.lake,
        snapshot_id=snapshot_id,
        counts={r.stage: {"kept": r.kept, "rejected": r.rejected, "failed": r.failed} for r in results},
    )
