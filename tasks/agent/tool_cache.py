"""Answers of services to tools, kept on this machine: an attempt that is run again asks nothing twice.

One SQLite file, written before an answer is used, which all workers of a machine share. Refusals that are the model's
own doing are kept too; outages are not. What is under way when a run is killed is not lost either: where calls to
models are written down, the broker that sends those sends the requests of tools (`tasks/services/question.py`).
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tasks.agent.tools import ToolMistake, ToolOutput
from tasks.services.calls import CallLog
from tasks.services.errors import ServiceError
from tasks.services.question import Question
from tasks.services.shared_file import SharedFile
from tasks.services.together import Together

_SCHEMA = "CREATE TABLE IF NOT EXISTS answers (asked TEXT PRIMARY KEY, value TEXT, picture BLOB, mistake TEXT)"

Ask = Callable[[], Awaitable[ToolOutput]]


class ToolCache(Protocol):
    """The answer to a question: a kept one, or that of `ask`, which is kept."""

    async def get(self, asked: str, ask: Ask) -> ToolOutput: ...


class NoCache:
    """Asks every time."""

    async def get(self, asked: str, ask: Ask) -> ToolOutput:
        return await ask()


@dataclass(frozen=True)
class _Kept:
    """An answer to be kept, or a mistake, and what was asked for it."""

    key: str
    value: str | None = None
    picture: bytes | None = None
    mistake: str | None = None
    question: Question | None = None


class FileCache:
    """Answers in one file; `services` names whom they come from, so another service's are not taken for them.

    `calls` is where calls are written down, whose broker sends; without it this process does.
    """

    def __init__(self, path: Path, services: str, calls: CallLog | None = None) -> None:
        self._services, self._calls = services, calls
        self._file = SharedFile(path, [_SCHEMA], "answers of tools", "delete the file to have them asked again")
        self._asking: dict[str, asyncio.Lock] = {}
        self._writer = Together(self._keep_all, "tool answers")

    async def get(self, asked: str, ask: Ask) -> ToolOutput:
        key = json.dumps([self._services, asked])
        lock = self._asking.setdefault(key, asyncio.Lock())
        try:
            async with lock:  # two attempts that ask the same at once ask once
                return await self._get(key, ask)
        finally:
            self._asking.pop(key, None)

    async def _get(self, key: str, ask: Ask) -> ToolOutput:
        found = self._read(key)
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
            await self._writer.do(_Kept(key, mistake=str(error), question=question))
            raise
        except ServiceError:
            if question is not None:
                await asyncio.to_thread(question.forget)
            raise
        await self._writer.do(_Kept(key, json.dumps(output.value), output.picture, question=question))
        return output

    def _read(self, key: str) -> tuple[str, bytes | None, str | None] | None:
        # In the event loop itself: a row by its key takes less than a thread's turn.
        with self._file.reading() as file:
            row = file.execute("SELECT value, picture, mistake FROM answers WHERE asked = ?", (key,)).fetchone()
        return row if row is None else (row[0], row[1], row[2])

    def _keep_all(self, several: list[_Kept]) -> list[None]:
        rows = [(one.key, one.value, one.picture, one.mistake) for one in several]
        with self._file.transaction() as file:
            file.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", rows)
        questions = [one.question for one in several if one.question is not None]
        if questions:  # all of this cache's calls
            questions[0].calls.answers_used([call_id for one in questions for call_id in one.call_ids])
        return [None] * len(several)
