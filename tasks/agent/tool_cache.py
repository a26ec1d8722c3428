"""Answers of services to tools, kept on this machine: an attempt that is run again asks nothing twice.

One SQLite file, written before an answer is used, which all workers of a machine share. Refusals that are the model's
own doing are kept too; outages are not. What is under way when a run is killed is not lost either: where calls to
models are written down, the broker that sends those sends the requests of tools (`tasks/services/question.py`).
"""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Protocol

from tasks.agent.tools import ToolMistake, ToolOutput
from tasks.services.calls import CallLog
from tasks.services.errors import ServiceError
from tasks.services.question import Question

_SCHEMA = "CREATE TABLE IF NOT EXISTS answers (asked TEXT PRIMARY KEY, value TEXT, picture BLOB, mistake TEXT)"
_WAIT_S = 60.0

Ask = Callable[[], Awaitable[ToolOutput]]


class ToolCache(Protocol):
    """The answer to a question: a kept one, or that of `ask`, which is kept."""

    async def get(self, asked: str, ask: Ask) -> ToolOutput: ...


class NoCache:
    """Asks every time."""

    async def get(self, asked: str, ask: Ask) -> ToolOutput:
        return await ask()


class FileCache:
    """Answers in one file; `services` names whom they come from, so another service's are not taken for them.

    `calls` is where calls are written down, whose broker sends; without it this process does.
    """

    def __init__(self, path: Path, services: str, calls: CallLog | None = None) -> None:
        self._path, self._services, self._calls = path, services, calls
        self._asking: dict[str, asyncio.Lock] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._open() as file:
            file.execute("PRAGMA journal_mode=WAL")
            file.execute(_SCHEMA)

    async def get(self, asked: str, ask: Ask) -> ToolOutput:
        key = json.dumps([self._services, asked])
        lock = self._asking.setdefault(key, asyncio.Lock())
        try:
            async with lock:  # two attempts that ask the same at once ask once
                return await self._get(key, ask)
        finally:
            self._asking.pop(key, None)

    async def _get(self, key: str, ask: Ask) -> ToolOutput:
        found = await asyncio.to_thread(self._read, key)
        if found is not None:
            value, picture, mistake = found
            if mistake is not None:
                raise ToolMistake(mistake)
            return ToolOutput(json.loads(value), picture)
        calls = self._calls
        question = Question(calls.store, calls.broker, key) if calls is not None and calls.broker is not None else None
        try:
            with question.sent_by_broker() if question is not None else contextlib.nullcontext():
                output = await ask()
        except ToolMistake as error:
            await asyncio.to_thread(self._keep, question, key, None, None, str(error))
            raise
        except ServiceError:
            if question is not None:
                await asyncio.to_thread(question.forget)
            raise
        await asyncio.to_thread(self._keep, question, key, json.dumps(output.value), output.picture, None)
        return output

    def _keep(
        self, question: Question | None, key: str, value: str | None, picture: bytes | None, mistake: str | None
    ) -> None:
        self._write(key, value, picture, mistake)
        if question is not None:
            question.used()

    def _read(self, key: str) -> tuple[str, bytes | None, str | None] | None:
        with self._open() as file:
            row = file.execute("SELECT value, picture, mistake FROM answers WHERE asked = ?", (key,)).fetchone()
        return row if row is None else (row[0], row[1], row[2])

    def _write(self, key: str, value: str | None, picture: bytes | None, mistake: str | None) -> None:
        with self._open() as file:
            file.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", (key, value, picture, mistake))

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        # A connection a question: they come from several threads, and one takes a fraction of a millisecond.
        with contextlib.closing(sqlite3.connect(self._path, timeout=_WAIT_S)) as file, file:
            yield file
