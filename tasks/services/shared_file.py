"""A small SQLite file that every process of a machine may write to: one transaction at a time, whole after any kill."""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from schemas.errors import StageRefused

BUSY_S = 60.0  # how long to wait for other processes' transactions, each of which takes about a millisecond


class SharedFile:
    """The file at a path, with its tables; each thread opens it by itself, for SQLite connections belong to one."""

    def __init__(self, path: str | Path, tables: Sequence[str], holds: str, remedy: str) -> None:
        """`holds` and `remedy` are words for the error that a file which cannot be written ends a stage with."""
        self.path, self._tables, self._holds, self._remedy = str(path), tables, holds, remedy
        self._opened = threading.local()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All that the block writes, or, after an error, none of it."""
        with self.reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Statements that each stand alone; to read waits for no writer."""
        try:
            yield self._connection()
        except sqlite3.Error as error:
            # Refused, for nothing may be asked without it: every other item would end the same way.
            raise StageRefused(f"{self._holds} in '{self.path}' cannot be kept: {error}; {self._remedy}") from error

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._opened, "connection", None)
        if connection is None:
            Path(self.path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
            self._prepare(connection)
            self._opened.connection = connection
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # Two processes that turn a new file to write-ahead logging at once do not wait for each other; one is refused.
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                # Whole after any crash of a process; the last moments may be lost with the machine's power.
                connection.execute("PRAGMA synchronous=NORMAL")
                for table in self._tables:
                    connection.execute(table)
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
