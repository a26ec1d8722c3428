"""The webhook, against a real HTTP server."""

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flows.notify import notify
from flows.options import RunOptions
from flows.session import open_session
from flows.stages import tell_exhausted
from schemas.messages import Usage
from schemas.settings.notify import NotifySettings
from tasks.runtime.items.outcome import StageResult
from tasks.services import MissingKeys

RESULT = StageResult("collect", "r", "done", {}, {}, 5, 0, 5, 0, 0, 0, {}, {}, {}, {}, Usage(), 1.0)


class Webhook(ThreadingHTTPServer):
    """Keeps what it is told and answers with `status`."""

    status = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.told: list[dict[str, Any]] = []


class Handler(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        self.server.told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    server = Webhook()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HOOK", f"http://127.0.0.1:{server.server_port}/T0/s3cret")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield server
    server.shutdown()


SETTINGS = NotifySettings(url_env="HOOK", timeout_s=5)


def test_an_event_arrives_as_a_small_document(webhook: Webhook, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    assert notify(SETTINGS, "waiting_snapshot", "snapshot ab waits", flow="pipeline", lake="/l", snapshot_id="ab")
    assert webhook.told == [
        {
            "event": "waiting_snapshot",
            "message": "snapshot ab waits",
            "flow": "pipeline",
            "lake": "/l",
            "snapshot_id": "ab",
        }
    ]
    assert "s3cret" not in caplog.text


def test_events_that_are_not_wanted_and_a_webhook_that_is_not_set_send_nothing(
    webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not notify(NotifySettings(url_env="HOOK", events=("failure",)), "exhausted_budget", "no more")
    monkeypatch.delenv("HOOK")
    assert not notify(SETTINGS, "failure", "broken")
    assert webhook.told == []


def test_a_webhook_that_fails_is_a_warning_without_its_address(
    webhook: Webhook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    webhook.status = 500
    assert not notify(SETTINGS, "failure", "broken")
    for wrong in ("http://127.0.0.1:9/T0/s3cret", "s3cret", "http://[/s3cret", "ftp://h/s3cret", "http://h\x00/s3cret"):
        monkeypatch.setattr("os.environ", {"HOOK": wrong, "NO_PROXY": "127.0.0.1,h"})
        assert not notify(SETTINGS, "failure", "broken")
    said = [record.getMessage() for record in caplog.records if record.name == "geofix.notify"]
    assert len(said) == 6 and "HTTP 500" in said[0] and "notify.url_env=HOOK" in said[0]
    assert "s3cret" not in caplog.text


def options(lake: Path, *overrides: str) -> RunOptions:
    return RunOptions(lake=str(lake), overrides=["notify.url_env=HOOK", "offline.serve=false", *overrides])


def test_a_run_that_fails_tells_the_webhook_and_no_key(
    webhook: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREETS", "key-9f8e7d")
    own = ["services.mapillary.base_url=https://streets.test", "services.mapillary.key_env=STREETS"]
    with pytest.raises(ZeroDivisionError), open_session(options(tmp_path, *own), []) as session:
        session.results.append(replace(RESULT, kept=4, failed=1))
        raise ZeroDivisionError("with key-9f8e7d")
    [told] = webhook.told
    assert (told["event"], told["message"], told["lake"]) == (
        "failure",
        "ZeroDivisionError: with ***",
        str(tmp_path),
    )
    assert told["counts"] == {"collect": {"kept": 4, "rejected": 0, "failed": 1}}


def test_a_run_that_cannot_begin_tells_the_webhook_too(webhook: Webhook, tmp_path: Path) -> None:
    own = ["services.mapillary.base_url=https://streets.test", "services.mapillary.key_env=STREETS_KEY"]
    with pytest.raises(MissingKeys), open_session(options(tmp_path / "lake", *own), ["collect"]):
        pass
    assert "STREETS_KEY" in webhook.told[0]["message"]
    assert not (tmp_path / "lake").exists()


def test_a_used_up_quota_is_told_and_a_passing_limit_is_not(webhook: Webhook, tmp_path: Path) -> None:
    with open_session(options(tmp_path), []) as session:
        tell_exhausted(session, replace(RESULT, failed=3, failures={"rate_limit": 3}))
        tell_exhausted(session, replace(RESULT, failed=3, failures={"outage": 1, "quota": 2}))
    [told] = webhook.told
    assert told["event"] == "exhausted_budget" and told["message"].startswith("2 rows of collect failed")
