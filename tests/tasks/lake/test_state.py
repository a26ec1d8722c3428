"""The local state of a lake is its owner's alone."""

import os
from pathlib import Path

import pytest

from flows.servers import Server, free_port
from tasks.lake import Lake
from tasks.runtime.items.stage_lock import stage_lock


def _open_to_others(folder: Path) -> list[str]:
    return [str(path) for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077]


@pytest.mark.parametrize("read_only", [True, False])
def test_the_state_of_an_older_lake_is_closed_at_first_use(tmp_path: Path, read_only: bool) -> None:
    home = tmp_path / ".state" / "prefect"
    home.mkdir(parents=True)
    (home / "prefect.db").write_bytes(b"key")
    outside = tmp_path / "outside"
    outside.touch(0o644)
    (home / "link").symlink_to(outside)
    for folder in (home, home.parent):
        folder.chmod(0o755)
    (home / "prefect.db").chmod(0o644)
    Lake(tmp_path, read_only=read_only)
    assert _open_to_others(home.parent) == [str(home / "link")]  # what it leads to is not the lake's
    assert outside.stat().st_mode & 0o777 == 0o644


def test_new_state_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        lake = Lake(tmp_path)
        with stage_lock(lake, "plan"):
            pass
        database = lake.state / "prefect.db"
        code = f"import sqlite3; sqlite3.connect({str(database)!r}).execute('create table t (a)')"
        server = Server(["python", "-c", code], f"http://127.0.0.1:{free_port()}", lake.state / "server.log")
        server.begin()
        assert server._process is not None
        server._process.wait(60)
    finally:
        os.umask(before)
    assert {path.name for path in lake.state.iterdir()} == {"plan.lock", "prefect.db", "server.log"}
    assert _open_to_others(lake.state) == []
