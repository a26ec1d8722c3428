"""The lines of the `geofix` loggers: in the log of the Prefect run, and in the terminal or the worker's output."""

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Literal

from prefect.context import FlowRunContext
from prefect.logging.handlers import APILogHandler

from flows.display import Display, Logged


class RunLog(logging.Handler):
    """Sends records to the Prefect API, as lines of the flow run or of the task run of the stage under way.

    The run's ids are kept here and not taken from Prefect's context: a thread that commits or watches has none.
    """

    def __init__(self, flow_run_id: str) -> None:
        super().__init__(logging.INFO)
        self._flow_run_id = flow_run_id
        self.task_run_id: str | None = None
        self._api = APILogHandler()

    def emit(self, record: logging.LogRecord) -> None:
        record.flow_run_id, record.task_run_id = self._flow_run_id, self.task_run_id
        self._api.emit(record)


class _Shown(logging.Handler):
    """Warnings as lines of the display."""

    def __init__(self, shown: Display) -> None:
        super().__init__(logging.WARNING)
        self._shown = shown

    def emit(self, record: logging.LogRecord) -> None:
        self._shown.say(record.getMessage())


class _JsonLines(logging.Formatter):
    """A record as one line of JSON, with the ids of the flow run and of the task run under way."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "flow_run_id": getattr(record, "flow_run_id", None),
            "task_run_id": getattr(record, "task_run_id", None),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


@contextlib.contextmanager
def run_log(shown: Display, log_format: Literal["text", "json"] = "text") -> Iterator[RunLog | None]:
    """While this lasts, our loggers' records of level INFO and above are in the run's log.

    With a terminal display, warnings are shown there, and Prefect's console handler, which would print them a second
    time, is left out; without one, that handler prints everything to the worker's output. As JSON, every record is
    a line of standard error, in either case.
    """
    run = FlowRunContext.get()
    to_api = RunLog(str(run.flow_run.id)) if run is not None and run.flow_run is not None else None
    handlers: list[logging.Handler] = [to_api] if to_api else []
    ours = logging.getLogger("geofix")
    level, propagate = ours.level, ours.propagate
    if log_format == "json":  # after the one above, which adds the ids
        lines = logging.StreamHandler(sys.stderr)
        lines.setFormatter(_JsonLines())
        handlers.append(lines)
        ours.propagate = False
    elif not isinstance(shown, Logged):
        handlers.append(_Shown(shown))
        ours.propagate = False
    ours.setLevel(logging.INFO)
    for handler in handlers:
        ours.addHandler(handler)
    try:
        yield to_api
    finally:
        for handler in handlers:
            ours.removeHandler(handler)
        ours.setLevel(level)
        ours.propagate = propagate


def flush() -> None:
    """Wait until the lines of all runs so far have arrived."""
    APILogHandler().flush()
