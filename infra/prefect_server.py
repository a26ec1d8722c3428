"""A Prefect server on loopback for one command: `python -m infra.prefect_server --port N --lifeline`.

Prefect can start such a server by itself, but that one outlives a command that is killed; this one ends with it.
"""

import argparse
import contextlib
import gzip
import os
import sqlite3
import sys
from pathlib import Path

import uvicorn

from infra.lifeline import exit_when_stdin_closes, serve_at

TABLES = Path(__file__).with_name("prefect_tables.sql.gz")  # made by infra/derive/prefect_tables.py


def main(argv: list[str] | None = None) -> int:
    """Serve until the starter ends."""
    parser = argparse.ArgumentParser(prog="python -m infra.prefect_server")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--listening-fd", type=int, help="serve on this open socket instead")
    parser.add_argument("--lifeline", action="store_true", help="end when standard input closes")
    options = parser.parse_args(argv)
    # What Prefect sets for its own temporary server: no pages, no schedulers, only the API.
    os.environ.update({"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"})
    # We use no blocks; registering the fifty kinds it knows takes seconds with every new lake.
    os.environ.setdefault("PREFECT_API_BLOCKS_REGISTER_ON_START", "0")
    if home := os.environ.get("PREFECT_HOME"):
        prepare(Path(home))
    if options.lifeline:
        exit_when_stdin_closes()
    config = uvicorn.Config(
        "prefect.server.api.server:create_app",
        factory=True,
        host="127.0.0.1",
        port=options.port,
        log_level="error",
        lifespan="on",
    )
    serve_at(uvicorn.Server(config), options.listening_fd)
    return 0


def prepare(home: Path) -> None:
    """Make Prefect's database, unless there is one: in a moment, where its migrations take a core seven seconds.

    Tables of an older version than Prefect's are migrated when it starts, as ever.
    """
    database = home / "prefect.db"
    if database.exists():
        return
    made = home / f"prefect.db.{os.getpid()}"
    with contextlib.closing(sqlite3.connect(made)) as opened:
        opened.executescript(gzip.decompress(TABLES.read_bytes()).decode())
    with contextlib.suppress(OSError):  # another command was first, or there are no links here: Prefect makes its own
        os.link(made, database)
    made.unlink()


if __name__ == "__main__":
    sys.exit(main())
