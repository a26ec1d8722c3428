"""Which Prefect server records a command."""

import os
from pathlib import Path
from typing import Any

import pytest

from flows.cli.running import prefect_ready
from flows.display import Display
from tasks.lake import Lake

UP = "http://127.0.0.1:4200/api"


@pytest.mark.parametrize(("record", "named", "own"), [(False, None, True), (True, None, False), (False, UP, False)])
def test_a_command_is_not_shown_by_up_unless_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: bool, named: str | None, own: bool
) -> None:
    started: list[str] = []

    class Server:
        def __init__(self, command: list[str], health_url: str, *_: Any, **__: Any) -> None:
            started.append(health_url)

        def begin(self) -> None: ...
        def ensure(self) -> None: ...
        def stop(self) -> None: ...

    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    monkeypatch.setattr("os.environ", environment | ({"PREFECT_API_URL": named} if named else {}))
    monkeypatch.setattr("flows.servers.Server", Server)
    monkeypatch.setattr("flows.background.running_api", lambda lake: UP)
    lake = Lake(tmp_path)
    with prefect_ready(lake, Display(), record=record):
        api, home = os.environ["PREFECT_API_URL"], os.environ["PREFECT_HOME"]
    assert started == ([f"{api}/health"] if own else []) and (api == UP) is not own
    assert home != str(lake.state / "prefect"), "the database of `up`"
