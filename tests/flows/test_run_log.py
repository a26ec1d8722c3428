"""Our loggers' lines: once in the terminal, and in the run's log."""

import logging

import pytest

from flows.display import Logged
from flows.run_log import RunLog, run_log
from tasks.runtime.items.outcome import Tick


class Terminal:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def tick(self, tick: Tick) -> None:
        pass

    def phase(self, text: str) -> None:
        pass

    def say(self, text: str) -> None:
        self.said.append(text)

    def close(self) -> None:
        pass


def test_a_terminal_shows_warnings_once_and_prefects_handlers_see_none(caplog: pytest.LogCaptureFixture) -> None:
    terminal = Terminal()
    ours = logging.getLogger("geofix.test")
    with run_log(terminal):
        ours.info("one worker")
        ours.warning("the service is slow")
    assert terminal.said == ["the service is slow"]
    assert caplog.records == []  # those that reach the root logger, which has Prefect's console handler
    ours.warning("afterwards")
    assert terminal.said == ["the service is slow"] and [r.getMessage() for r in caplog.records] == ["afterwards"]


def test_without_a_terminal_everything_reaches_the_workers_output(caplog: pytest.LogCaptureFixture) -> None:
    shown = Logged()
    with run_log(shown):
        logging.getLogger("geofix.test").info("one worker")
        shown.say("snapshot approved")
    assert [record.getMessage() for record in caplog.records] == ["one worker", "snapshot approved"]


def test_a_stage_under_way_is_a_line_each_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    shown = Logged()
    for second in range(0, 150, 10):
        monkeypatch.setattr("flows.display.time.monotonic", lambda now=second: now)
        shown.tick(Tick("collect", total=300, skipped=0, kept=second))
    assert [record.getMessage() for record in caplog.records] == ["collect: 60 of 300", "collect: 120 of 300"]


def test_a_record_of_any_thread_carries_the_ids_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[logging.LogRecord] = []
    monkeypatch.setattr("prefect.logging.handlers.APILogHandler.emit", lambda self, record: sent.append(record))
    handler = RunLog("flow")
    handler.task_run_id = "task"
    handler.handle(logging.LogRecord("geofix.x", logging.WARNING, "f", 1, "text", None, None))
    assert (sent[0].flow_run_id, sent[0].task_run_id) == ("flow", "task")  # type: ignore[attr-defined]
