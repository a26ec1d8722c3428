"""What the stages of one run share: configuration, lake, services, display."""

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from flows.display import Display, Silent
from flows.options import RunOptions
from flows.order import check_of, check_stage_names, services_of
from flows.servers import offline_world
from schemas.config import Config
from tasks.lake import Lake
from tasks.runtime.outcome import StageResult
from tasks.runtime.runner import Context
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


class _Spoken(logging.Handler):
    """What the work itself has to say, such as what it waits for, as a line of the display."""

    def __init__(self, shown: Display) -> None:
        super().__init__(logging.WARNING)
        self._shown = shown

    def emit(self, record: logging.LogRecord) -> None:
        self._shown.say(record.getMessage())


@contextlib.contextmanager
def _warnings_spoken(shown: Display) -> Iterator[None]:
    logger, handler = logging.getLogger("geofix"), _Spoken(shown)
    logger.addHandler(handler)
    logger.propagate = False  # Prefect's own handlers would say it a second time
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = True


def check_before(config: Config, parts: Sequence[str]) -> None:
    """Say which keys these parts miss and what is wrong with their input before anything is started or written."""
    check_stage_names(config.spread.stages)
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
    world = offline_world(config, lake.root / ".state" / "offline-world.log")
    with _warnings_spoken(display.get()), world as (reachable, ready):
        yield Session(reachable, lake, ready)
