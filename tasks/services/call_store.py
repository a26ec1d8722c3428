"""Calls to models in the response store: their replies, what they cost, and the money of those in flight.

A request in flight is noted with the money it may cost at most: the sum of what was spent and of what is in flight
never passes the budget. Rows move on to the table `calls` of the lake (`tasks/runtime/calls.py`).
"""

import contextlib
import functools
import os
import sqlite3
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from tasks.services.response_store import CALL_COLUMNS, ResponseStore

NAMESPACE = "chat"
FORGOTTEN_S = 900.0  # a process of another machine that began nothing for so long is gone
COLUMNS = ("call_id", "asked_at", *CALL_COLUMNS, "reply_json")  # of a row as the table `calls` has it

_STORED = ("key", "asked_at", *CALL_COLUMNS, "value")  # the same in the file
_ROWS = f"SELECT {', '.join(_STORED)} FROM responses WHERE namespace = '{NAMESPACE}' AND "
_INSERT = f"INTO responses (namespace, batch, {', '.join(_STORED)}) VALUES "
# One statement for many calls: after each statement this thread waits for its turn to go on, and other processes wait
# for the end of the transaction.
_IN = "IN (SELECT value FROM json_each(?))"
_TABLES = (
    "CREATE TABLE IF NOT EXISTS reservations (token TEXT PRIMARY KEY, call_id TEXT, owner TEXT, run_owner TEXT, "
    "since_s REAL, role TEXT, usd REAL)",
    "CREATE INDEX IF NOT EXISTS reserved ON reservations (call_id)",
    "CREATE INDEX IF NOT EXISTS waiting ON responses (batch) "
    f"WHERE batch IS NULL AND expires_at IS NULL AND namespace = '{NAMESPACE}'",
    "CREATE TABLE IF NOT EXISTS batches (batch INTEGER PRIMARY KEY AUTOINCREMENT, stored INTEGER)",
    "CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value)",
)
_WAITING = f"batch IS NULL AND expires_at IS NULL AND namespace = '{NAMESPACE}'"
_ROWS_AT_ONCE = 32  # of one statement: SQLite before 3.32 takes no more than 999 values

Row = dict[str, Any]
Facts = dict[str, Any]  # sums by name


@dataclass(frozen=True)
class Begin:
    """A request is about to be sent."""

    call_id: str
    role: str
    owner: str  # the process that asks
    token: str  # of this request, unlike that of any other
    most_usd: float = 0.0  # what it may cost at most
    budget_usd: float | None = None
    replay: bool = True
    run_owner: str = ""  # the process of the command, whose end is also that of its workers on other machines


@dataclass(frozen=True)
class Begun:
    """What is to be done about it. `wait`: the same request is in flight, or others have to end to know the money."""

    what: Literal["go", "found", "wait", "exhausted"]
    row: Row | None = None
    spent_usd: float = 0.0


@dataclass(frozen=True)
class End:
    """A request was answered, or failed; without a row it was given up, and may be paid for nevertheless."""

    call_id: str
    token: str
    row: Row | None = None
    was_sent: bool = True


class CallStore(ResponseStore):
    """The response store with its calls to models."""

    tables = (*ResponseStore.tables, *_TABLES)

    def totals(self) -> tuple[float, float]:
        """US dollars of all calls so far, and of those whose process was killed, or gave up, before an answer came."""
        with self._file.transaction() as file, _facts(file) as facts:
            return facts["spent"], facts["lost"]

    def close_abandoned(self) -> int:
        """Turn requests that were in flight when their process was killed into losses; how many there were so far."""
        with self._file.transaction() as file, _facts(file) as facts:
            self._open_reservations(file, facts)
            return int(facts["abandoned"])

    def _apply(self, file: sqlite3.Connection, steps: Sequence[Any]) -> list[Any]:
        results: list[Any] = []
        for group in _without_repeats(steps):
            calls = [step for step in group if isinstance(step, Begin | End)]
            if not calls:
                results += super()._apply(file, group)
                continue
            with _facts(file) as facts:
                self._end(file, facts, [step for step in calls if isinstance(step, End)])
                begun = self._begin(file, facts, [step for step in calls if isinstance(step, Begin)])
            others = iter(super()._apply(file, [step for step in group if not isinstance(step, Begin | End)]))
            results += [
                begun.get(request.token) if isinstance(request, Begin | End) else next(others) for request in group
            ]
        return results

    def _begin(self, file: sqlite3.Connection, facts: Facts, steps: Sequence[Begin]) -> dict[str, Begun]:
        """By token; the calls differ."""
        if not steps:
            return {}
        ids = _json([step.call_id for step in steps])
        stored = {row[0]: row for row in file.execute(f"{_ROWS}key {_IN}", (ids,)).fetchall()}
        begun = {
            step.token: Begun("found", _as_row(stored[step.call_id]))
            for step in steps
            if step.replay and step.call_id in stored
        }
        pending = [step for step in steps if step.token not in begun]
        reserved = f"SELECT call_id FROM reservations WHERE call_id {_IN}"
        same = {call_id for (call_id,) in file.execute(reserved, (ids,)).fetchall()}
        open_usd, roles = 0.0, set[str]()
        if same or any(step.budget_usd is not None for step in pending):
            open_usd, roles = self._open_reservations(file, facts)
        if same:  # of living processes
            same = {call_id for (call_id,) in file.execute(reserved, (ids,)).fetchall()}
        going: list[tuple[Any, ...]] = []
        for step in pending:
            usd = step.most_usd * max(1.0, facts[f"ratio {step.role}"])
            refused = Begun("wait") if step.call_id in same else _no_money(step, usd, open_usd, roles, facts)
            if refused is not None:
                begun[step.token] = refused
                continue
            begun[step.token] = Begun("go")
            open_usd += usd
            roles.add(step.role)
            going.append((step.token, step.call_id, step.owner, step.run_owner, self._clock(), step.role, usd))
        _insert(file, "INSERT INTO reservations VALUES ", going)
        return begun

    def _open_reservations(self, file: sqlite3.Connection, facts: Facts) -> tuple[float, set[str]]:
        """What requests in flight may cost, and their roles; those of processes that are gone become losses."""
        now_s, total, roles = self._clock(), 0.0, set[str]()
        groups = "SELECT owner, run_owner, role, max(since_s), sum(usd) FROM reservations GROUP BY 1, 2, 3"
        for owner, run_owner, role, since_s, usd in file.execute(groups).fetchall():
            if _lives(owner, run_owner, since_s, now_s):
                total += usd
                roles.add(role)
                continue
            gone = "DELETE FROM reservations WHERE owner = ? AND run_owner = ? AND role = ? RETURNING usd"
            lost = [each for (each,) in file.execute(gone, (owner, run_owner, role)).fetchall()]
            facts["abandoned"] += len(lost)
            self._lose(file, facts, role, lost)
        return total, roles

    def _lose(self, file: sqlite3.Connection, facts: Facts, role: str, reserved: Sequence[float]) -> None:
        """Requests whose process is gone may have been paid for: each counts as what its role usually costs."""
        if any(reserved):
            usual = file.execute(
                f"SELECT avg(cost_usd) FROM responses WHERE namespace = '{NAMESPACE}' AND role = ? AND requests > 0",
                (role,),
            ).fetchone()[0]
            facts["lost"] += sum(usd if usual is None else min(usd, usual) for usd in reserved)

    def _end(self, file: sqlite3.Connection, facts: Facts, steps: Sequence[End]) -> None:
        if not steps:
            return
        tokens = _json([step.token for step in steps])
        ended = f"DELETE FROM reservations WHERE token {_IN} RETURNING token, role, usd"
        held = {token: (role, usd) for token, role, usd in file.execute(ended, (tokens,)).fetchall()}
        for step in steps:
            role, usd = held.get(step.token, ("", 0.0))
            if step.row is None:
                if step.was_sent:
                    self._lose(file, facts, role, [usd])
                continue
            cost = step.row["cost_usd"] or 0.0
            facts["spent"] += cost
            if usd and cost:
                # A server may count more tokens than a question was taken for: the next ones are taken for so much
                # more.
                ratio = facts[f"ratio {role}"]
                facts[f"ratio {role}"] = max(ratio, max(1.0, ratio) * cost / usd)
        rows = [(NAMESPACE, None, *_values(step.row)) for step in steps if step.row is not None]
        _insert(file, f"INSERT OR REPLACE {_INSERT}", rows)

    def take_batch(self) -> tuple[str, int, list[Row]] | None:
        """(this file's id, number, rows) of rows that the table does not have yet; the number stays theirs."""
        with self._file.transaction() as file:
            left = file.execute("SELECT batch FROM batches WHERE stored = 0").fetchone()
            if left:
                batch = left[0]
            else:
                if not file.execute(f"SELECT 1 FROM responses WHERE {_WAITING} LIMIT 1").fetchone():
                    return None
                batch = file.execute("INSERT INTO batches (stored) VALUES (0)").lastrowid
                file.execute(f"UPDATE responses SET batch = ? WHERE {_WAITING}", (batch,))
            rows = file.execute(f"{_ROWS}batch = ?", (batch,)).fetchall()
            file.execute("INSERT OR IGNORE INTO facts VALUES ('file', ?)", (uuid.uuid4().hex,))
            (file_id,) = file.execute("SELECT value FROM facts WHERE name = 'file'").fetchone()
        return file_id, batch, [_as_row(row) for row in rows]

    def mark_stored(self, batch: int) -> None:
        """The table has the rows of a batch."""
        with self._file.transaction() as file:
            file.execute("UPDATE batches SET stored = 1 WHERE batch = ?", (batch,))

    def load(self, rows: Sequence[Row], version: int) -> int:
        """Add rows of the table that the file lacks, such as after its folder was deleted; returns how many."""
        with self._file.transaction() as file, _facts(file) as facts:
            new = 0
            marks = f"({', '.join('?' * (len(_STORED) + 2))})"
            for row in rows:
                if file.execute(f"INSERT OR IGNORE {_INSERT}{marks}", (NAMESPACE, 0, *_values(row))).rowcount:
                    facts["spent"] += row["cost_usd"] or 0.0
                    new += 1
        self.set_table_version(version)
        return new

    def table_version(self) -> int:
        """The version of the table whose rows are all here."""
        with self._file.transaction() as file, _facts(file) as facts:
            return int(facts.get("version", -1))

    def set_table_version(self, version: int) -> None:
        """All rows of this version of the table are here."""
        with self._file.transaction() as file:
            file.execute("INSERT OR REPLACE INTO facts VALUES ('version', ?)", (version,))


@contextlib.contextmanager
def _facts(file: sqlite3.Connection) -> Iterator[Facts]:
    """Sums of the file by name: read together, and those that the block changes written together."""
    before = dict(file.execute("SELECT name, value FROM facts").fetchall())
    facts = defaultdict[str, Any](float, before)
    yield facts
    changed = [(name, value) for name, value in facts.items() if before.get(name, 0.0) != value]
    _insert(file, "INSERT OR REPLACE INTO facts VALUES ", changed)


def _no_money(step: Begin, usd: float, open_usd: float, roles: set[str], facts: Facts) -> Begun | None:
    """Why a request may not be sent now; None: it may."""
    if step.budget_usd is None:
        return None
    spent = facts["spent"] + facts["lost"]
    if spent + open_usd + usd > step.budget_usd * (1 - 1e-9):  # sums of cents are not exact
        return Begun("wait" if open_usd else "exhausted", spent_usd=spent)
    if usd and step.role in roles and not facts[f"ratio {step.role}"]:
        return Begun("wait")  # for the first of its role, which tells how its server counts
    return None


def _without_repeats(steps: Sequence[Any]) -> Iterator[list[Any]]:
    """The steps in their order, in groups in which no request and no answer is named twice."""
    group: list[Any] = []
    named = set[tuple[str, str]]()
    for step in steps:
        name = (NAMESPACE, step.call_id) if isinstance(step, Begin | End) else (step.namespace, step.key)
        if name in named:
            yield group
            group, named = [], set()
        group.append(step)
        named.add(name)
    if group:
        yield group


def _insert(file: sqlite3.Connection, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[start : start + _ROWS_AT_ONCE]
        marks = f"({', '.join('?' * len(some[0]))})"
        file.execute(statement + ", ".join([marks] * len(some)), [value for row in some for value in row])


def _values(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in COLUMNS)


def _as_row(stored: tuple[Any, ...]) -> Row:
    return dict(zip(COLUMNS, stored, strict=True))


def _json(values: list[str]) -> str:
    return orjson.dumps(values).decode()


def process_owner() -> str:
    """This process, as others of the machine can look it up."""
    return _owner(os.getpid())


@functools.lru_cache(maxsize=1)
def _owner(pid: int) -> str:
    return f"{os.uname().nodename}:{pid}:{_started(pid)}"


def _lives(owner: str, run_owner: str, since_s: float, now_s: float) -> bool:
    """Whether a process lives, as far as can be told: of another machine's, only its command may be of this one."""
    ours = f"{os.uname().nodename}:"
    for name in (owner, run_owner):
        if name.startswith(ours):
            pid, started = name.removeprefix(ours).split(":")
            if _started(int(pid)) != started:
                return False
    return owner.startswith(ours) or now_s - since_s < FORGOTTEN_S


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
