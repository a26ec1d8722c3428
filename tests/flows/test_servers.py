"""Servers a command starts: one that does not come is one line, and is not waited for in silence."""

import sys
from pathlib import Path

import pytest

from flows import servers
from flows.servers import Server
from schemas.errors import GeofixError


def server(program: str, tmp_path: Path) -> Server:
    return Server([sys.executable, "-c", program], "http://127.0.0.1:9/health", tmp_path / "server.log")


def test_one_that_ends_at_once_names_its_log(tmp_path: Path) -> None:
    with pytest.raises(GeofixError, match=r"did not start \(exit code 5\); its log is .*server\.log"):
        server("raise SystemExit(5)", tmp_path).ensure()


def test_one_that_found_no_space_names_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.lake.writes.LEAST_FREE_BYTES", 2**62)
    with pytest.raises(GeofixError, match=r"did not start: no space left on the disk of .*; free some and run again"):
        server("raise SystemExit(5)", tmp_path).ensure()


def test_one_that_never_answers_is_waited_for_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(servers, "SAY_EVERY_S", 0.0)
    monkeypatch.setattr(servers, "START_S", 0.5)
    silent = server("import sys; sys.stdin.read()", tmp_path)
    with pytest.raises(GeofixError, match=r"did not answer at http://127\.0\.0\.1:9/health .*less busy"):
        silent.ensure()
    silent.stop()
    assert "waiting for a server at http://127.0.0.1:9/health" in caplog.text
