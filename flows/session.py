"""What the stages of one run share: configuration, lake, services, display, log."""

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flows.display import Display
from flows.logged import Logged
from flows.notify import notify
from flows.options import RunOptions
from flows.order import check_of, services_of
from flows.servers import offline_world
from schemas.config import Config
from schemas.settings.notify import Event
from tasks.lake import Lake
from tasks.runtime.outcome import StageResult
from tasks.runtime.runner import Context
from tasks.services import MissingKeys, connect
from tasks.services.errors import safe_text

if TYPE_CHECKING:
    from flows.run_log import RunLog

# A display cannot be a flow's parameter: Prefect stores those.
display: ContextVar[Display] = ContextVar("display", default=Logged())  # noqa: B039 - holds only times


@dataclass
class Session:
    """One run of one or more parts."""

    config: Config
    lake: Lake
    ready: Callable[[], None] = lambda: None  # called before the services are first asked
    run_log: "RunLog | None" = None
    results: list[StageResult] = field(default_factory=list)

    @property
    def display(self) -> Display:
        return display.get()

    @property
    def state(self) -> Path:
        """Where servers and Prefect keep what they need, beside the tables."""
        return self.lake.root / ".state"

    def context(
        self, config: Config, services: Collection[str], ready: Callable[[], None], flow_run_id: str = ""
    ) -> Context:
        """What the runner runs a stage in; the named services must have their keys."""
        return Context(
            lake=self.lake,
            connections=connect(config.services, os.environ, services),
            spread=config.spread,
            progress=self.display.tick,
            ready=ready,
            flow_run_id=flow_run_id,
            config_json=config.model_dump_json(),
        )

    def notify(self, event: Event, message: str, snapshot_id: str | None = None) -> None:
        """Tell the webhook, with the counts so far."""
        from prefect.runtime import flow_run

        secrets: tuple[str, ...] = ()
        with contextlib.suppress(MissingKeys):
            secrets = connect(self.config.services, os.environ, ()).secrets()
        notify(
            self.config.notify,
            event,
            safe_text(message, secrets, 500),
            flow=flow_run.flow_name,
            flow_run_id=flow_run.id,
            lake=str(self.lake.root),
            snapshot_id=snapshot_id,
            counts={r.stage: {"kept": r.kept, "rejected": r.rejected, "failed": r.failed} for r in self.results},
        )


def check_before(config: Config, parts: Sequence[str]) -> None:
    """Say which keys these parts miss and what is wrong with their input before anything is started or written."""
    connect(config.services, os.environ, services_of(parts))
    for part in parts:
        check = check_of(part)
        if check is not None:
            check(getattr(config, part))


@contextlib.contextmanager
def open_session(options: RunOptions, parts: Sequence[str]) -> Iterator[Session]:
    """Configuration checked, keys there, lake writable, services reachable; a failure is told to the webhook."""
    from flows.run_log import run_log  # imports prefect, whose settings a command has to make first

    config = options.resolve()
    check_before(config, parts)
    session = Session(config, Lake(config.lake))
    world = offline_world(config, session.state / "offline-world.log")
    with run_log(display.get()) as session.run_log:
        try:
            with world as (session.config, session.ready):
                yield session
        except Exception as error:
            session.notify("failure", f"{type(error).__name__}: {error}")
            raise
