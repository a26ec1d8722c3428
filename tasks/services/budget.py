"""Budgets that outlive a process: a small SQLite file that every process of every run on a lake shares.

A permit is counted before it is used, in one transaction, so a process killed at any moment can only have used fewer
than the file says: at most the one lease it held is lost.
"""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemas.settings.endpoint import Allowance
from tasks.services.rate_budget import Lease, Paused, Standing, give_back, grant, pause, paused_s
from tasks.services.response_store import SharedFile

_TABLE = "CREATE TABLE IF NOT EXISTS standings (bucket TEXT PRIMARY KEY, next_s REAL, day INTEGER, used INTEGER)"
_PAUSES = "CREATE TABLE IF NOT EXISTS pauses (name TEXT PRIMARY KEY, until_s REAL, times INTEGER, total_s REAL)"
_SAVE = (
    "INSERT INTO standings VALUES (?, ?, ?, ?) "
    "ON CONFLICT (bucket) DO UPDATE SET next_s = excluded.next_s, day = excluded.day, used = excluded.used"
)


class BudgetFile:
    """The rate_budget in a file. Travels to other processes of the machine, each of which opens the file by itself."""

    def __init__(self, path: str | Path, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock = str(path), clock
        remedy = "if the file is damaged, delete it, and the day's count starts anew"
        self._file = SharedFile(path, (_TABLE, _PAUSES), "the budgets of requests", remedy)

    def __reduce__(self) -> tuple[Any, ...]:
        return (BudgetFile, (self.path,))

    def lease(self, bucket: str, allowance: Allowance, want: int) -> Lease:
        """At most `want` permits of a budget."""
        with self._file.transaction() as connection:
            # Read inside the transaction: time spent waiting for it must not count as a moment missed.
            lease, after = grant(_standing(connection, bucket), allowance, want, self._clock())
            _save(connection, bucket, after)
            return lease

    def give_back(self, bucket: str, day: int, count: int) -> None:
        """Put back permits that were not used."""
        with self._file.transaction() as connection:
            _save(connection, bucket, give_back(_standing(connection, bucket), day, count))

    def standing(self, bucket: str) -> Standing:
        """What was granted so far."""
        with self._file.transaction() as connection:
            return _standing(connection, bucket)

    def pause(self, name: str, seconds: float) -> None:
        """A service is to be asked nothing for this time; 0: it answers again."""
        with self._file.transaction() as connection:
            after = pause(_paused(connection, name), seconds, self._clock())
            connection.execute(
                "INSERT OR REPLACE INTO pauses VALUES (?, ?, ?, ?)", (name, after.until_s, after.times, after.total_s)
            )

    def paused_s(self, name: str) -> float:
        """Seconds for which a service still wants to be asked nothing."""
        with self._file.transaction() as connection:
            return paused_s(_paused(connection, name), self._clock())

    def pauses(self) -> dict[str, Paused]:
        """All pauses so far, by service."""
        with self._file.transaction() as connection:
            rows = connection.execute("SELECT name, until_s, times, total_s FROM pauses").fetchall()
        return {name: Paused(*rest) for name, *rest in rows}


def _standing(connection: sqlite3.Connection, bucket: str) -> Standing:
    row = connection.execute("SELECT next_s, day, used FROM standings WHERE bucket = ?", (bucket,)).fetchone()
    return Standing(*row) if row else Standing()


def _paused(connection: sqlite3.Connection, name: str) -> Paused:
    row = connection.execute("SELECT until_s, times, total_s FROM pauses WHERE name = ?", (name,)).fetchone()
    return Paused(*row) if row else Paused()


def _save(connection: sqlite3.Connection, bucket: str, standing: Standing) -> None:
    connection.execute(_SAVE, (bucket, standing.next_s, standing.day, standing.used))
