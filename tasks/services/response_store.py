"""What services were queried and what they answered, kept once for a lake: one SQLite file in WAL mode.

An entry has a namespace (`chat`, `tool`, `geocoder`, `collect.box`, …), a key (a hash of what was queried), and the
answer. Answers of models, tools and geocoders live as long as the lake; those of collect expire. An answer is in the
file before it is used, so a run that is killed asks again only what was in flight at that moment.

Every process of a machine may open the file. Writes of a moment go in one transaction, in a thread of their own.
"""

import asyncio
import contextlib
import errno
import hashlib
import json
import os
import queue
import re
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakValueDictionary

from schemas.errors import StageRefused

FILE = "responses.sqlite"
BUSY_S = 60.0  # how long to wait for other processes' transactions, each of which takes a few milliseconds
BATCH_S = 0.004  # a model takes a hundred times as long
MOST_BYTES = 1_000_000_000  # of answers that expire; the oldest make room
TRIM_BYTES = 50_000_000  # written by this process between two looks at the sum
SCHEME = "geofix:"  # of the address of a picture of the lake, before its id, where an answer names one
_ADDRESS = re.compile(SCHEME.encode() + rb"[0-9A-Za-z]+")
VACUUM_PAGES = 20_000  # given back to the disk at a time: 80 MB
WAL_PAGES = 8000  # 32 MB between two checkpoints: a picture must not cause one each

# Of a call to a model: what is known of it besides its reply. NULL in all other namespaces.
CALL_COLUMNS = (
    *("request_hash", "stage", "item_id", "run_id", "role", "endpoint", "model", "served_model", "sampling_json"),
    *("verdict", "finish_reason", "prompt_tokens", "completion_tokens", "requests", "seconds", "cost_usd"),
)
# The value comes last: SQLite reads the columns before it without reading a long answer.
_RESPONSES = (
    "CREATE TABLE IF NOT EXISTS responses (namespace TEXT NOT NULL, key TEXT NOT NULL, asked_at REAL, "
    f"expires_at REAL, {', '.join(CALL_COLUMNS)}, batch INTEGER, value BLOB, PRIMARY KEY (namespace, key))"
)
_EXPIRING = "CREATE INDEX IF NOT EXISTS expiring ON responses (expires_at) WHERE expires_at IS NOT NULL"
_KEEP = (
    "INSERT OR REPLACE INTO responses (namespace, key, asked_at, expires_at, item_id, value) VALUES (?, ?, ?, ?, ?, ?)"
)
_FIND = "SELECT value, asked_at FROM responses WHERE namespace = ? AND key = ? AND coalesce(expires_at, ?) >= ?"
_TOO_MUCH = (
    "DELETE FROM responses WHERE rowid IN (SELECT rowid FROM (SELECT rowid, sum(length(value)) OVER (ORDER BY rowid "
    "DESC) AS total FROM responses WHERE expires_at IS NOT NULL) WHERE total > ?)"
)


class SharedFile:
    """A small SQLite file that every process of a machine may write to: one transaction at a time, whole after any
    kill. Each thread opens it by itself, for SQLite connections belong to one."""

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
                if connection.in_transaction:  # of a full disk SQLite has rolled back by itself
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Single statements; a reader waits for no writer."""
        try:
            yield self._connection()
        except (sqlite3.Error, OSError) as error:
            # Refused, for nothing may be queried without it: every other item would end the same way.
            if _is_full(error):
                full = f"no space left on the disk of '{self.path}' for {self._holds}; free some and run again"
                raise StageRefused(full) from error
            raise StageRefused(f"{self._holds} in '{self.path}' cannot be kept: {error}; {self._remedy}") from error

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._opened, "connection", None)
        if connection is None:
            _create(Path(self.path))
            connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
            self._prepare(connection)
            self._opened.connection = connection
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # Two processes that turn a new file to write-ahead logging at once do not wait for each other; one is refused.
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # before the file's first page
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute(f"PRAGMA wal_autocheckpoint={WAL_PAGES}")
                # Whole after any crash of a process; the last moments may be lost with the machine's power.
                connection.execute("PRAGMA synchronous=NORMAL")
                for table in self._tables:
                    connection.execute(table)
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


def _is_full(error: sqlite3.Error | OSError) -> bool:
    """Whether the disk is: SQLite's own word for it, or the system's."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOSPC
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


_creating = threading.Lock()


def _create(path: Path) -> None:
    """Make the file for its owner alone: it holds originals of pictures and replies. SQLite's other files follow it.

    An existing file is never opened here: to close any handle of a file ends all locks that this process holds on it,
    SQLite's included, and the next two writers would damage it.
    """
    with _creating:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


@dataclass(frozen=True)
class Find:
    """Look an answer up. The result is a `Response`, or None."""

    namespace: str
    key: str


@dataclass(frozen=True)
class Keep:
    """Write an answer down."""

    namespace: str
    key: str
    value: bytes
    asked_at: float
    expires_at: float | None = None  # None: it lives as long as the lake
    item_id: str | None = None  # of the item that was first


@dataclass(frozen=True)
class Forget:
    """Delete an answer."""

    namespace: str
    key: str


@dataclass(frozen=True)
class Response:
    """An answer that was kept."""

    value: bytes
    asked_at: float


class Responses(Protocol):
    """A store of answers, in a file of this machine or behind an actor."""

    def apply(self, steps: Sequence[Any]) -> list[Any]:
        """Do all steps in one transaction, in their order; what came of each."""
        ...


class ResponseStore:
    """The answers in a file. Travels to other processes of the machine, each of which opens the file by itself."""

    tables: Sequence[str] = (_RESPONSES, _EXPIRING)

    def __init__(self, path: str | Path, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock = str(path), clock
        remedy = "free space there, or, if the file is damaged, delete it: what the table `calls` has is loaded again"
        self._file = SharedFile(path, self.tables, "answers of services", remedy)
        self._untrimmed = TRIM_BYTES  # the first answer that expires has the file trimmed

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.path,))

    def find(self, namespace: str, key: str) -> Response | None:
        """An answer that was kept and has not expired."""
        with self._file.reading() as file:
            return self._find(file, namespace, key)

    def apply(self, steps: Sequence[Any]) -> list[Any]:
        """Do all steps in one transaction, in their order; what came of each."""
        with self._file.transaction() as file:
            results = self._apply(file, steps)
        if self._untrimmed > TRIM_BYTES:
            self._untrimmed = 0
            self._trim()
        return results

    def forget_items(self, is_meant: Callable[[str], bool]) -> int:
        """Delete the answers to these items, those that name one, and all that expire, without a trace.

        Returns how many were to items.
        """
        with self._file.reading() as file:
            file.execute("PRAGMA secure_delete=ON")
        with self._file.transaction() as file:
            items = "SELECT DISTINCT item_id FROM responses WHERE item_id IS NOT NULL"
            meant = [item_id for (item_id,) in file.execute(items).fetchall() if is_meant(item_id)]
            mine = "DELETE FROM responses WHERE item_id IN (SELECT value FROM json_each(?))"
            gone = file.execute(mine, (json.dumps(meant),)).rowcount
            naming = "SELECT rowid, value FROM responses WHERE instr(value, CAST(? AS BLOB))"
            for rowid, value in file.execute(naming, (SCHEME,)).fetchall():  # answers that name one of them
                if any(is_meant(address.decode()) for address in _ADDRESS.findall(value)):
                    file.execute("DELETE FROM responses WHERE rowid = ?", (rowid,))
            file.execute("DELETE FROM responses WHERE expires_at IS NOT NULL")  # they may list or hold pictures
        with self._file.reading() as file:
            file.executescript("PRAGMA wal_checkpoint(TRUNCATE)")
        return gone

    def _apply(self, file: sqlite3.Connection, steps: Sequence[Any]) -> list[Any]:
        results: list[Any] = []
        for step in steps:
            result: Response | None = None
            if isinstance(step, Find):
                result = self._find(file, step.namespace, step.key)
            elif isinstance(step, Keep):
                told = (step.asked_at, step.expires_at, step.item_id, step.value)
                file.execute(_KEEP, (step.namespace, step.key, *told))
                self._untrimmed += len(step.value) if step.expires_at is not None else 0
            elif isinstance(step, Forget):
                file.execute("DELETE FROM responses WHERE namespace = ? AND key = ?", (step.namespace, step.key))
            results.append(result)
        return results

    def _trim(self) -> None:
        """Delete what has expired, and the oldest of what is too much."""
        with self._file.transaction() as file:
            file.execute("DELETE FROM responses WHERE expires_at < ?", (self._clock(),))
            file.execute(_TOO_MUCH, (MOST_BYTES,))
        with self._file.reading() as file:
            file.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")  # as a script it runs to its end

    def _find(self, file: sqlite3.Connection, namespace: str, key: str) -> Response | None:
        now_s = self._clock()
        row = file.execute(_FIND, (namespace, key, now_s, now_s)).fetchone()
        return Response(row[0], row[1]) if row and row[0] is not None else None


def digest_key(*request: Any) -> str:
    """The key of what was queried: JSON values that tell it from everything else."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def pack(head: dict[str, Any], body: bytes = b"") -> bytes:
    """JSON and bytes as one value."""
    return json.dumps(head).encode() + b"\n" + body


def unpack(value: bytes) -> tuple[dict[str, Any], bytes]:
    """What `pack` was given."""
    head, _, body = value.partition(b"\n")
    header: dict[str, Any] = json.loads(head)
    return header, body


class BatchedWriter:
    """Steps of many tasks, applied together: those of a moment go into one transaction, in a thread of its own."""

    def __init__(self, apply: Callable[[list[Any]], Sequence[Any]]) -> None:
        self._apply = apply
        self._steps: queue.SimpleQueue[tuple[Any, asyncio.Future[Any] | None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="responses", daemon=True).start()

    async def write(self, step: Any) -> Any:
        """Returns what came of the step, when it is in the file."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._steps.put((step, done))
        return await done

    def write_later(self, step: Any) -> None:
        """Without waiting for it; steps keep their order."""
        self._steps.put((step, None))

    def _run(self) -> None:
        while True:
            taken = [self._steps.get()]
            time.sleep(BATCH_S)
            with contextlib.suppress(queue.Empty):
                while True:
                    taken.append(self._steps.get_nowait())
            results: Sequence[Any] = ()
            failed: Exception | None = None
            try:
                results = self._apply([step for step, _ in taken])
            except Exception as error:  # noqa: BLE001 - whatever it is belongs to those that wait for it
                failed = error
            waiting: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], int]]] = {}
            for number, (_, done) in enumerate(taken):
                if done is not None:
                    waiting.setdefault(done.get_loop(), []).append((done, number))
            for loop, ended in waiting.items():
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(_tell, ended, results, failed)


def _tell(ended: list[tuple[asyncio.Future[Any], int]], results: Sequence[Any], failed: Exception | None) -> None:
    for done, number in ended:
        if not done.done():  # the caller was cancelled
            done.set_exception(failed) if failed is not None else done.set_result(results[number])


_writers: dict[int, tuple[Responses, BatchedWriter]] = {}
_writers_lock = threading.Lock()


def writer_of(store: Responses) -> BatchedWriter:
    """The writer of a store in this process."""
    with _writers_lock:
        # The store is kept beside it: another one cannot come to have its id.
        if id(store) not in _writers:
            _writers[id(store)] = store, BatchedWriter(store.apply)
        return _writers[id(store)][1]


# Held while something is queried, by event loop, namespace and key.
_asking: WeakValueDictionary[tuple[int, str, str], asyncio.Lock] = WeakValueDictionary()


async def ask_once(
    store: Responses, namespace: str, key: str, ask: Callable[[], Awaitable[bytes]], item_id: str | None = None
) -> bytes:
    """A kept answer, or that of `ask`, which is kept before it is returned.

    Tasks of a process that ask the same at once ask once. What `ask` raises is not kept.
    """
    writer = writer_of(store)
    lock = _asking.setdefault((id(asyncio.get_running_loop()), namespace, key), asyncio.Lock())
    async with lock:
        response: Response | None = await writer.write(Find(namespace, key))
        if response is not None:
            return response.value
        asked_at = time.time()
        value = await ask()
        await writer.write(Keep(namespace, key, value, asked_at, item_id=item_id))
        return value
