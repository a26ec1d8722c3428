"""Requests to models and their replies in a small SQLite file that every process of every run on a lake shares.

A reply is in the file before it is used, so what was answered once is not asked again, however a run ends. A request
under way is noted with the money it may cost at most: the sum of what was spent and of what is under way never passes
the budget. Rows move on to the table `calls` (`tasks/runtime/calls.py`).
"""

import functools
import operator
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from tasks.services.shared_file import SharedFile

USED_S = 3600.0  # how long a used answer is there for others who began to ask before it was used
FORGOTTEN_S = 900.0  # a request under way on another machine that is older has no asker any more
COLUMNS = (
    *("call_id", "request_hash", "stage", "item_id", "run_id", "role", "endpoint", "model", "served_model"),
    *("sampling_json", "verdict", "finish_reason", "prompt_tokens", "completion_tokens", "requests", "seconds"),
    *("cost_usd", "reply_json", "asked_at"),
)
_TABLES = (
    f"CREATE TABLE IF NOT EXISTS calls ({', '.join(COLUMNS)}, batch INTEGER, PRIMARY KEY (call_id))",
    "CREATE INDEX IF NOT EXISTS waiting ON calls (batch) WHERE batch IS NULL",
    "CREATE TABLE IF NOT EXISTS batches (batch INTEGER PRIMARY KEY AUTOINCREMENT, stored INTEGER)",
    "CREATE TABLE IF NOT EXISTS names (name TEXT PRIMARY KEY, value TEXT)",
    "CREATE TABLE IF NOT EXISTS under_way (call_id TEXT PRIMARY KEY, owner, token, since_s, usd, role)",
    "CREATE TABLE IF NOT EXISTS sums (name TEXT PRIMARY KEY, value REAL)",
    # Money of requests whose asker is gone; and answers as a broker received them, until they are rows of calls.
    "CREATE TABLE IF NOT EXISTS lost (call_id TEXT, usd REAL, lost_s REAL)",
    "CREATE TABLE IF NOT EXISTS answers (call_id TEXT, attempt INTEGER, sent_s REAL, status INTEGER, headers TEXT, "
    "body BLOB, PRIMARY KEY (call_id, attempt))",
    "CREATE TABLE IF NOT EXISTS used (call_id TEXT PRIMARY KEY, used_s REAL)",  # answers that are kept elsewhere
)

_OURS = "call_id = ? AND token = ?"
_KNOWN = f"SELECT {', '.join(COLUMNS)} FROM calls WHERE call_id IN ?"
_SAME = "SELECT call_id FROM under_way WHERE call_id IN ?"
_OPEN = "INSERT INTO under_way VALUES "
_ENDED, _WITH_USD = "DELETE FROM under_way WHERE call_id IN ? AND token IN ?", " RETURNING call_id, usd"
# An answer to a request that was sent before its asker was lost: what was lost is found, and counts as it is.
_FOUND_AGAIN = (
    "DELETE FROM lost WHERE call_id IN ? AND lost_s > (SELECT min(sent_s) FROM answers WHERE call_id = lost.call_id)"
)
_USED = "DELETE FROM answers WHERE call_id IN ?"
_INSERT = "INSERT OR REPLACE INTO calls VALUES "
_IDS, _AT_ONCE = 256, 32  # ids and rows of a statement: SQLite before 3.32 takes no more than 999 values
_values = operator.itemgetter(*COLUMNS)

Row = dict[str, Any]


@dataclass(frozen=True)
class Begin:
    """A request is about to be sent."""

    call_id: str
    role: str
    owner: str  # the process
    token: str  # of this request, whichever others are alike
    most_usd: float = 0.0  # what it may cost at most
    budget_usd: float | None = None
    replay: bool = True


@dataclass(frozen=True)
class Begun:
    """What is to be done about it. `wait`: the same request is under way, or others have to end to know the money."""

    what: Literal["go", "found", "wait", "exhausted"]
    row: Row | None = None
    spent_usd: float = 0.0


@dataclass(frozen=True)
class End:
    """A request was answered, or failed; without a row it was given up, and may be paid for all the same."""

    call_id: str
    token: str
    row: Row | None = None
    was_sent: bool = True


class CallStore(Protocol):
    """Does several things in one transaction; and knows which answers of a broker are of no more use."""

    def apply(self, steps: Sequence[Begin | End]) -> list[Begun | None]: ...
    def answers_used(self, call_ids: Sequence[str]) -> None: ...
    def forget_answers(self, call_ids: Sequence[str]) -> None: ...


class CallFile:
    """The calls of a lake. Travels to other processes of the machine, each of which opens the file by itself."""

    def __init__(self, path: str | Path, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock = str(path), clock
        remedy = "free space there, or, if the file is damaged, delete it: what the table `calls` has is loaded again"
        self._file = SharedFile(path, _TABLES, "the calls to models", remedy)

    def __reduce__(self) -> tuple[Any, ...]:
        return (CallFile, (self.path,))

    def apply(self, steps: Sequence[Begin | End]) -> list[Begun | None]:
        """Do all in one transaction; the results of those that begin.

        A statement is for all of them where that can be: after each, this thread waits for its turn to go on, and
        other processes wait for the end of the transaction.
        """
        with self._file.transaction() as file:
            if len({step.call_id for step in steps}) < len(steps):  # one may be about what another one does
                return [self._all(file, [step])[0] for step in steps]
            parts = [steps[start : start + _IDS] for start in range(0, len(steps), _IDS)]
            return [begun for part in parts for begun in self._all(file, part)]

    def _all(self, file: sqlite3.Connection, steps: Sequence[Begin | End]) -> list[Begun | None]:
        self._end(file, [step for step in steps if isinstance(step, End)])
        begun = self._begin(file, [step for step in steps if isinstance(step, Begin)])
        return [begun.get(step.call_id) for step in steps]

    def spent(self) -> tuple[float, float]:
        """US dollars of all calls so far, and of those whose process was killed, or gave up, before an answer came."""
        with self._file.transaction() as file:
            return _sum(file, "spent"), _lost(file)

    def abandoned(self) -> int:
        """Requests that were under way when their process was killed, and were begun again since."""
        with self._file.transaction() as file:
            return int(_sum(file, "abandoned"))

    def answers_used(self, call_ids: Sequence[str]) -> None:
        """What a broker received under these ids is kept elsewhere now; it goes after a while."""
        with self._file.transaction() as file:
            now_s = self._clock()
            file.executemany("INSERT OR REPLACE INTO used VALUES (?, ?)", [(one, now_s) for one in call_ids])
            old = "SELECT call_id FROM used WHERE used_s < ?"
            file.execute(f"DELETE FROM answers WHERE call_id IN ({old})", (now_s - USED_S,))
            file.execute("DELETE FROM used WHERE used_s < ?", (now_s - USED_S,))

    def forget_answers(self, call_ids: Sequence[str]) -> None:
        """Drop what a broker received under these ids."""
        with self._file.transaction() as file:
            file.executemany("DELETE FROM answers WHERE call_id = ?", [(one,) for one in call_ids])

    def take_batch(self) -> tuple[str, int, list[Row]] | None:
        """(this file's id, number, rows) of rows that the table does not have yet; the number stays theirs."""
        with self._file.transaction() as file:
            left = file.execute("SELECT batch FROM batches WHERE stored = 0").fetchone()
            if left:
                batch = left[0]
            else:
                if not file.execute("SELECT 1 FROM calls WHERE batch IS NULL LIMIT 1").fetchone():
                    return None
                batch = file.execute("INSERT INTO batches (stored) VALUES (0)").lastrowid
                file.execute("UPDATE calls SET batch = ? WHERE batch IS NULL", (batch,))
            rows = file.execute(f"SELECT {', '.join(COLUMNS)} FROM calls WHERE batch = ?", (batch,)).fetchall()
            file.execute("INSERT OR IGNORE INTO names VALUES ('file', ?)", (uuid.uuid4().hex,))
            (file_id,) = file.execute("SELECT value FROM names WHERE name = 'file'").fetchone()
        return file_id, batch, [dict(zip(COLUMNS, row, strict=True)) for row in rows]

    def stored(self, batch: int) -> None:
        """The table has the rows of a batch."""
        with self._file.transaction() as file:
            file.execute("UPDATE batches SET stored = 1 WHERE batch = ?", (batch,))

    def load(self, rows: Sequence[Row], version: int) -> int:
        """Take in rows of the table that the file lacks, such as after its folder was deleted; returns how many."""
        with self._file.transaction() as file:
            new = 0
            for row in rows:
                marks = ", ".join("?" * (len(COLUMNS) + 1))
                values = (*(row[name] for name in COLUMNS), 0)
                if file.execute(f"INSERT OR IGNORE INTO calls VALUES ({marks})", values).rowcount:
                    _add(file, "spent", row["cost_usd"] or 0.0)
                    new += 1
            _set(file, "version", version)
            return new

    def version(self) -> int:
        """The version of the table whose rows are all here."""
        with self._file.transaction() as file:
            return int(_sum(file, "version", -1))

    def seen(self, version: int) -> None:
        """All rows of this version of the table are here."""
        with self._file.transaction() as file:
            _set(file, "version", version)

    def _begin(self, file: sqlite3.Connection, steps: Sequence[Begin]) -> dict[str, Begun]:
        """By id; the ids differ."""
        if not steps:
            return {}
        ids = _some([step.call_id for step in steps])
        found = file.execute(_for(_KNOWN, len(ids)), ids).fetchall()
        rows = {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in found}
        same = {call_id for (call_id,) in file.execute(_for(_SAME, len(ids)), ids).fetchall()}
        begun = {step.call_id: Begun("found", rows[step.call_id]) for step in steps
                 if step.replay and step.call_id in rows}  # fmt: skip
        asked = [step for step in steps if step.call_id not in begun]
        plain = [one for one in asked if one.call_id not in same and one.budget_usd is None and not one.most_usd]
        now_s = self._clock()
        _insert(file, _OPEN, [(one.call_id, one.owner, one.token, now_s, 0.0, one.role) for one in plain])
        begun |= {one.call_id: Begun("go") for one in plain}
        for one in asked:
            if one.call_id not in begun:
                begun[one.call_id] = self._begin_one(file, one)
        return begun

    def _begin_one(self, file: sqlite3.Connection, step: Begin) -> Begun:
        """One that was not answered before: it may be under way already, or there may be no money for it."""
        now_s = self._clock()
        same = file.execute("SELECT owner, since_s FROM under_way WHERE call_id = ?", (step.call_id,)).fetchone()
        if same and _lives(same[0], same[1], now_s):
            return Begun("wait")
        if same:
            self._lose(file, step.call_id)
            _add(file, "abandoned", 1)
        usd = step.most_usd * max(1.0, _sum(file, f"ratio {step.role}")) if step.most_usd else 0.0
        if step.budget_usd is not None:
            open_usd = self._open_usd(file, now_s)
            spent = _sum(file, "spent") + _lost(file)
            if spent + open_usd + usd > step.budget_usd * (1 - 1e-9):  # sums of cents are not exact
                return Begun("wait" if open_usd else "exhausted", spent_usd=spent)
            untried = usd > 0 and _sum(file, f"ratio {step.role}", -1) < 0
            if untried and file.execute("SELECT 1 FROM under_way WHERE role = ?", (step.role,)).fetchone():
                return Begun("wait")  # for the first of its role, which tells how its server counts
        values = (step.call_id, step.owner, step.token, now_s, usd, step.role)
        _insert(file, _OPEN, [values])
        return Begun("go")

    def _open_usd(self, file: sqlite3.Connection, now_s: float) -> float:
        """What requests under way may cost; those of processes that are gone become losses."""
        total = 0.0
        asks = "SELECT owner, max(since_s), sum(usd) FROM under_way WHERE usd > 0 GROUP BY owner"
        for name, since_s, usd in file.execute(asks).fetchall():
            if _lives(name, since_s, now_s):
                total += usd
                continue
            for (call_id,) in file.execute("SELECT call_id FROM under_way WHERE owner = ?", (name,)).fetchall():
                self._lose(file, call_id)
                _add(file, "abandoned", 1)
        return total

    def _lose(self, file: sqlite3.Connection, call_id: str) -> None:
        """A request whose asker is gone may have been paid for: it counts as what its role usually costs."""
        usd, role = file.execute("SELECT usd, role FROM under_way WHERE call_id = ?", (call_id,)).fetchone()
        usual = file.execute("SELECT avg(cost_usd) FROM calls WHERE role = ? AND requests > 0", (role,)).fetchone()[0]
        if usd:
            likely = usd if usual is None else min(usd, usual)
            file.execute("INSERT INTO lost VALUES (?, ?, ?)", (call_id, likely, self._clock()))
        file.execute("DELETE FROM under_way WHERE call_id = ?", (call_id,))

    def _end(self, file: sqlite3.Connection, steps: Sequence[End]) -> None:
        """The ids differ."""
        for step in steps:
            if step.row is None:
                ours = (step.call_id, step.token)
                if step.was_sent and file.execute(f"SELECT 1 FROM under_way WHERE {_OURS}", ours).fetchone():
                    self._lose(file, step.call_id)
                file.execute(f"DELETE FROM under_way WHERE {_OURS}", ours)
        rows = {step.call_id: step.row for step in steps if step.row is not None}
        if not rows:
            return
        ids, tokens = _some(list(rows)), _some([step.token for step in steps if step.row is not None])
        spent = sum(row["cost_usd"] or 0.0 for row in rows.values())
        noted = dict(file.execute(_for(_ENDED + _WITH_USD if spent else _ENDED, len(ids)), ids + tokens).fetchall())
        for call_id, usd in noted.items():
            row, cost = rows[call_id], rows[call_id]["cost_usd"]
            if usd and cost:
                # A server may count more tokens than a question was taken for: the next ones are taken for so much
                # more.
                name = f"ratio {row['role']}"
                _set(file, name, max(0.0, _sum(file, name), max(1.0, _sum(file, name)) * cost / usd))
        file.execute(_for(_FOUND_AGAIN, len(ids)), ids)
        file.execute(_for(_USED, len(ids)), ids)
        _insert(file, _INSERT, [(*_values(row), None) for row in rows.values()])
        _add(file, "spent", spent)


@functools.lru_cache(maxsize=64)
def _for(statement: str, count: int) -> str:
    """A statement for as many ids, at its `IN`s: lengths are few, so that it is prepared once."""
    return statement.replace(" IN ?", f" IN ({', '.join('?' * count)})")


def _insert(file: sqlite3.Connection, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    for start in range(0, len(rows), _AT_ONCE):
        some = rows[start : start + _AT_ONCE]
        marks = f"({', '.join('?' * len(some[0]))})"
        file.execute(statement + ", ".join([marks] * len(some)), [value for row in some for value in row])


def _some(values: list[str]) -> list[str]:
    """As many as the next power of two, the last one several times."""
    return values + values[-1:] * ((1 << (len(values) - 1).bit_length()) - len(values))


def owner() -> str:
    """This process, as others of the machine can look it up."""
    return _owner(os.getpid())


@functools.lru_cache(maxsize=1)
def _owner(pid: int) -> str:
    return f"{os.uname().nodename}:{pid}:{_started(pid)}"


def _lives(name: str, since_s: float, now_s: float) -> bool:
    node, pid, started = name.rsplit(":", 2)
    if node != os.uname().nodename:
        return now_s - since_s < FORGOTTEN_S
    return _started(int(pid)) == started


def _started(pid: int) -> str:
    """When a process began, which tells it from a later one of the same number; empty: there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    try:  # a system without /proc
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return ""
    return "?"


def _lost(file: sqlite3.Connection) -> float:
    return float(file.execute("SELECT coalesce(sum(usd), 0) FROM lost").fetchone()[0])


def _sum(file: sqlite3.Connection, name: str, default: float = 0.0) -> float:
    found = file.execute("SELECT value FROM sums WHERE name = ?", (name,)).fetchone()
    return float(found[0]) if found else default


def _add(file: sqlite3.Connection, name: str, value: float) -> None:
    if value:
        _set(file, name, _sum(file, name) + value)


def _set(file: sqlite3.Connection, name: str, value: float) -> None:
    file.execute("INSERT OR REPLACE INTO sums VALUES (?, ?)", (name, value))
