"""The webhook, against a real HTTP server."""

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from flows.notify import notify
from schemas.settings.notify import NotifySettings


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
    for wrong in ("http://127.0.0.1:9/T0/s3cret", "s3cret", "http://[s3cret", "ftp://h/s3cret", "http://h\x00/s3cret"):
        monkeypatch.setattr("os.environ", {"HOOK": wrong, "NO_PROXY": "127.0.0.1,h"})
        assert not notify(SETTINGS, "failure", "broken")
    said = [record.getMessage() for record in caplog.records if record.name == "geofix.notify"]
    assert len(said) == 6 and "HTTP 500" in said[0] and "notify.url_env=HOOK" in said[0]
    assert "s3cret" not in caplog.text
