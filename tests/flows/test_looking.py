"""Rows on a screen and in a pipe."""

from pathlib import Path

import pytest

from flows.command import Call
from flows.looking import show_table
from tasks.lake import Commit, Lake

MESSAGE = "mapillary answered something odd: " + " ".join(f"word{k:03d}" for k in range(60))


@pytest.fixture
def call(tmp_path: Path) -> Call:
    failure = {"stage": "collect", "item_id": "p1", "kind": "bad_response", "message": MESSAGE, "attempts": 3}
    Lake(tmp_path).upsert("failures", [failure], Commit("test", 1))
    return Call(lake=str(tmp_path))


def test_a_message_is_whole_on_a_line_of_its_own_in_a_pipe(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert show_table(call, "failures", 10, None, []) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  message")]
    assert line.split(maxsplit=1)[1] == MESSAGE


def test_on_a_screen_it_goes_on_below_itself(
    call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert show_table(call, "failures", 10, None, []) == 0
    shown = capsys.readouterr().out
    assert all(f"word{k:03d}" in shown for k in range(60)) and max(map(len, shown.splitlines())) <= 90
    below = [line for line in shown.splitlines() if line.startswith(" " * 25 + "word")]
    assert len(below) >= 5
