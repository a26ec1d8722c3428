"""Answers of services to tools, kept on this machine: an attempt that is run again asks nothing twice.

One SQLite file, written before an answer is used. So a killed run loses none, and all workers of a machine share it.
Refusals that are the model's own doing are kept too; outages are not.
"""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Protocol

from tasks.agent.tools import ToolMistake, ToolOutput

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
    """Answers in one file; `services` names whom they come from, so another service's are not taken for them."""

    def __init__(self, path: Path, services: str) -> None:
        self._path, self._services = path, services
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
        try:
            output = await ask()
        except ToolMistake as error:
            await asyncio.to_thread(self._write, key, None, None, str(error))
            raise
        await asyncio.to_thread(self._write, key, json.dumps(output.value), output.picture, None)
        return output

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
