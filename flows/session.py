"""What the stages of one run share: configuration, lake, services, display."""

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from flows.display import Display, Silent
from flows.options import RunOptions
from flows.order import check_of, services_of
from flows.servers import offline_world
from schemas.config import Config
from tasks.frame import Context
from tasks.lake import Lake
from tasks.outcome import StageResult
from tasks.services import connect

# A display cannot be a flow's parameter: Prefect stores those.
display: ContextVar[Display] = ContextVar("display", default=Silent())  # noqa: B039 - Silent holds no state


@dataclass
class Session:
    """One run of one or more parts."""

    config: Config
    lake: Lake
    ready: Callable[[], None] = lambda: None  # called before the services are first asked
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
        """What the frame runs a stage in; the named services must have their keys."""
        return Context(
            lake=self.lake,
            connections=connect(config.services, os.environ, services),
            spread=config.spread,
            progress=self.display.tick,
            ready=ready,
            flow_run_id=flow_run_id,
            config_json=config.model_dump_json(),
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
    """Configuration checked, keys there, lake writable, services reachable."""
    config = options.resolve()
    check_before(config, parts)
    lake = Lake(config.lake)
    with offline_world(config, lake.root / ".state" / "offline-world.log") as (reachable, ready):
        yield Session(reachable, lake, ready)
