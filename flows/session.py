"""What the stages of one run share: configuration, lake, services, display."""

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from flows.display import Display, Silent
from flows.options import RunOptions
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
    results: list[StageResult] = field(default_factory=list)

    @property
    def display(self) -> Display:
        return display.get()

    @property
    def state(self) -> Path:
        """Where servers and Prefect keep what they need, beside the tables."""
        return self.lake.root / ".state"

    def context(self, config: Config | None = None, flow_run_id: str = "") -> Context:
        """What the frame runs a stage in."""
        config = config or self.config
        return Context(
            lake=self.lake,
            connections=connect(config.services, os.environ),
            spread=config.spread,
            progress=self.display.tick,
            flow_run_id=flow_run_id,
            config_json=config.model_dump_json(),
        )


@contextlib.contextmanager
def open_session(options: RunOptions) -> Iterator[Session]:
    """Configuration checked, lake writable, services reachable."""
    config = options.resolve()
    connect(config.services, os.environ)  # a missing key is said before anything is written
    lake = Lake(config.lake)
    with offline_world(config, lake.root / ".state" / "offline-world.log") as config:
        yield Session(config, lake)
