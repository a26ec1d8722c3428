"""Which Prefect server records a command."""

import os
from pathlib import Path

import pytest

from flows.cli.running import prefect_ready
from flows.display import Display
from tasks.lake import Lake

UP = "http://127.0.0.1:4200/api"


@pytest.mark.parametrize(
    ("record", "named", "expected"), [(False, None, None), (True, None, UP), (False, UP, UP), (False, "other", "other")]
)
def test_a_command_is_not_shown_by_up_unless_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: bool, named: str | None, expected: str | None
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    monkeypatch.setattr("os.environ", environment | ({"PREFECT_API_URL": named} if named else {}))
    monkeypatch.setattr("flows.background.running_api", lambda lake: UP)
    lake = Lake(tmp_path)
    with prefect_ready(lake, Display(), record=record):
        api, home = os.environ.get("PREFECT_API_URL"), os.environ["PREFECT_HOME"]
    assert api == expected
    assert home != str(lake.state / "prefect"), "the database of `up`"
