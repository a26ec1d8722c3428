"""What a command took besides its work is known to the next estimate."""

from pathlib import Path

from flows.cli.starts import PYTHON_S, WORKERS_S, note_start, usual_start_s
from tasks.lake import Lake


def test_the_same_command_knows_best(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    assert usual_start_s(lake, "collect", 3.0) == PYTHON_S + WORKERS_S + 3.0
    note_start(lake, "plan", 7.04, has_workers=False)
    assert usual_start_s(lake, "collect", 3.0) == 7.0 + WORKERS_S + 3.0
    note_start(lake, "collect", 31.0, has_workers=True)
    note_start(lake, "plan", 9.0, has_workers=False)
    assert usual_start_s(lake, "collect", 3.0) == 31.0
    # A run that found nothing to do has started no worker.
    note_start(lake, "collect", 8.0, has_workers=False)
    assert usual_start_s(lake, "collect", 3.0) == 31.0


def test_a_damaged_note_is_no_note(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    for text in ("{", "[]", '{"collect": 3}', '{"collect": {"seconds": "x", "workers": true}}'):
        path = lake.root / ".state" / "starts.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        assert usual_start_s(lake, "collect", 0.0) == PYTHON_S + WORKERS_S
    note_start(lake, "collect", 5.0, has_workers=True)
    assert usual_start_s(lake, "collect", 0.0) == 5.0
