"""Progress: something to see within a second and every three, estimates only once they can be trusted."""

import io
import os
import pty
import time
from pathlib import Path

import pytest
from rich.console import Console

from flows.cli import progress
from flows.cli.progress import Bars, Lines, Pace, duration, summary
from tasks.runtime.items.outcome import Tick
from tasks.runtime.steps import StepFile, Steps


def test_no_estimate_until_enough_is_known_and_then_from_the_recent_rate() -> None:
    pace = Pace(now=0.0)
    pace.add(1, now=60.0)  # the first item came late: workers were starting
    pace.add(2, now=61.0)
    assert pace.words(2, 100) == "", "two results in a second say nothing"
    for second in range(1, 41):
        pace.add(2 + second, now=61.0 + second)
    assert pace.rate() == pytest.approx(1.0)
    assert pace.words(42, 100) == "  1.0/s, 58 s left"
    for second in range(1, 61):  # it gets ten times slower: what was before does not count for long
        pace.add(42 + second // 10, now=101.0 + second)
    assert pace.rate() == pytest.approx(0.1, rel=0.5)


def test_durations_are_said_as_a_person_does() -> None:
    assert [duration(s) for s in (0.4, 59, 60, 3599, 7260)] == ["0 s", "59 s", "1 min 0 s", "59 min 59 s", "2 h 1 min"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "BEAT_S", 0.01)
    monkeypatch.setattr(progress, "FIRST_S", 0.03)
    monkeypatch.setattr(progress, "EVERY_S", 0.1)


def wait_for(capsys: pytest.CaptureFixture[str], text: str) -> str:
    seen, end = "", time.monotonic() + 120
    while text not in seen:
        assert time.monotonic() < end, seen
        time.sleep(0.01)
        seen += capsys.readouterr().err
    return seen


def test_every_phase_is_seen_without_a_word_from_the_stages(
    quick: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shown = Lines(tmp_path)
    try:
        wait_for(capsys, "checking the settings: 0 s\n")
        shown.phase("starting Prefect")
        wait_for(capsys, "starting Prefect: 0 s\n")
        shown.tick(Tick("collect", 44, 0))
        wait_for(capsys, "collect: 0 of 44, preparing the items, 0 s\n")
        shown.tick(Tick("collect", 44, 0, kept=3, seconds=2))
        wait_for(capsys, "collect: 3 of 44, 0 s\n")
        shown.tick(Tick("collect", 44, 0, kept=44, seconds=9.04, finished=True))
        wait_for(capsys, "collect is done, preparing the next step: 0 s\n")
    finally:
        shown.close()
    time.sleep(0.2)
    assert capsys.readouterr().err == "", "nothing more once it is closed"


def test_training_shows_its_steps_and_says_what_it_made(
    quick: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = StepFile(tmp_path, "train.sft")
    file.write(Steps(7, 7, "loss 1"))
    os.utime(file.path, (1, 1))  # of an earlier run
    shown = Lines(tmp_path)
    try:
        shown.tick(Tick("train.sft", 1, 0))
        wait_for(capsys, "train.sft: 0 of 1, preparing the items")
        file.write(Steps(12, 120, "loss 2.31"))
        wait_for(capsys, "train.sft: step 12 of 120, loss 2.31, 0 s\n")
        file.write(Steps(120, 120, "loss 0.5"))
        shown.tick(Tick("train.sft", 1, 0, kept=1, seconds=31.46, finished=True))
        said = wait_for(capsys, "train.sft  ")
    finally:
        shown.close()
    assert "train.sft              1 model made, 120 steps, loss 0.5, 31.5 s\n" in said


def test_what_a_stage_made_is_named() -> None:
    assert summary(Tick("review", 1, 0, 1, 0, 0, 2.0, True)) == "review                 1 snapshot made, 2.0 s"
    rejected = summary(Tick("train.grpo", 1, 0, 0, 1, 0, 2.0, True))
    assert "1 in = 0 kept + 1 rejected + 0 failed" in rejected
    assert "1,234 in = 1,234 kept" in summary(Tick("plan", 1234, 0, 1234, 0, 0, 2.0, True))


def test_a_terminal_shows_one_live_line_and_leaves_the_summaries(tmp_path: Path) -> None:
    screen = io.StringIO()
    shown = Bars(tmp_path, Console(file=screen, force_terminal=True, width=100, highlight=False))
    shown.phase("starting Prefect")
    time.sleep(0.5)
    shown.tick(Tick("collect", 44, 0, kept=3))
    time.sleep(0.5)
    shown.tick(Tick("collect", 44, 0, kept=44, seconds=9.0, finished=True))
    shown.close()
    text = screen.getvalue()
    assert "starting Prefect" in text and "3 of 44" in text
    assert "collect                44 in = 44 kept + 0 rejected + 0 failed, 9.0 s" in text


@pytest.mark.parametrize(("typed", "agreed"), [("y\n", True), ("yes\n", True), ("\n", False), ("n\n", False)])
def test_redoing_is_asked_for_in_a_terminal_and_no_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, agreed: bool
) -> None:
    ours, theirs = pty.openpty()
    screen = io.StringIO()
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        os.write(ours, typed.encode())
        shown = Bars(tmp_path, Console(file=screen, force_terminal=True, width=100, highlight=False))
        try:
            assert shown.confirm("evaluate: 12 finished items would be done again") is agreed
        finally:
            shown.close()
    os.close(ours)
    assert "12 finished items would be done again\nDo them again? [y/N]" in screen.getvalue()


def test_without_a_terminal_no_one_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    shown = Bars(tmp_path, Console(file=io.StringIO(), force_terminal=True))
    assert shown.confirm("question") is False
    shown.close()
    lines = Lines(tmp_path)
    assert lines.confirm("question") is False
    lines.close()


def test_a_wait_says_what_it_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Lines()
    try:
        shown.tick(Tick("collect", 44, 0, waits_for="starting 2 workers"))
        assert shown.status() == ("collect", "0 of 44, starting 2 workers, 0 s")
    finally:
        shown.close()
