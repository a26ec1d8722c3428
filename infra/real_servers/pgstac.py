"""A STAC API: stac-fastapi over pgstac. Collections and items are loaded by `pypgstac`, as archives do it."""

import contextlib
import json
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.real_servers.environments import program
from infra.real_servers.postgres import Postgres
from infra.real_servers.processes import environment, free_ports, running


@dataclass(frozen=True)
class PgstacServer:
    """A running server."""

    url: str
    home: Path
    pypgstac: Path
    env: dict[str, str]

    def load(self, kind: str, rows: Iterable[dict[str, Any]]) -> None:
        """Put `collections` or `items` there; those of the same id are replaced."""
        file = self.home / f"{kind}.ndjson"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        command: list[str | Path] = [self.pypgstac, "load", kind, file, "--method", "upsert"]
        subprocess.run(command, check=True, env=self.env, capture_output=True)


@contextlib.contextmanager
def serving(folder: Path, home: Path, database: Postgres) -> Iterator[PgstacServer]:
    """The server on a free port, without collections."""
    pypgstac, (port,) = program(folder, "pgstac"), free_ports(1)
    sizes = {"DB_MIN_CONN_SIZE": "1", "DB_MAX_CONN_SIZE": "4"}
    env = environment(PGDATABASE="pgstac", **database.variables, **sizes)
    database.sql("create database pgstac")
    subprocess.run([pypgstac, "migrate"], check=True, env=env, capture_output=True)
    url = f"http://127.0.0.1:{port}"
    command: list[str | Path] = [
        pypgstac.with_name("uvicorn"),
        "stac_fastapi.pgstac.app:create_app",
        "--factory",
        "--host",
        "127.0.0.1",
    ]
    command += ["--port", str(port), "--log-level", "warning"]
    with running(command, f"{url}/", home / "pgstac.log", env):
        yield PgstacServer(url, home, pypgstac, env)
