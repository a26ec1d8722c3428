"""Recorded answers of tools in one SQLite file: agents are trained and measured without asking any service.

A question is a tool's name, its arguments and the limits of its results; whom it was asked of does not matter, so a
recording can be used where those services are not. What was never asked is a miss: the agent is told that nothing is
recorded, and the run counts it.
"""

import contextlib
import json
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.errors import InputError
from tasks.agent.toolbox import NAMESPACE, NOT_RECORDED, kept_output
from tasks.agent.tools import ToolMistake, ToolOutput
from tasks.services.response_store import FILE, digest_key, unpack

VERSION = 1
_ANSWERS = "CREATE TABLE answers (key TEXT PRIMARY KEY, tool TEXT, arguments TEXT, value BLOB) WITHOUT ROWID"
_FACTS = "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT)"


@dataclass(frozen=True)
class Written:
    """What a recording holds, and what the lake holds besides it."""

    answers: int
    by_tool: dict[str, int]
    without_question: int  # kept by an older version, which did not write the question down
    of_others: int  # asked of other services than those that are configured


class Recording:
    """A file of recorded answers, read by every worker; its misses are counted in this process."""

    def __init__(self, file: str | Path) -> None:
        self.file, self.misses, self.found = Path(file), 0, 0
        self._opened = threading.local()
        with self._reading() as opened:
            version = opened.execute("SELECT value FROM facts WHERE name = 'version'").fetchone()
        if version is None or version[0] != str(VERSION):
            raise InputError(f"{self._named}: this is a recording of another version; write it again")

    @property
    def _named(self) -> str:
        return f"services.tools.recording={self.file}"

    async def ask_once(self, request: Sequence[Any], ask: Callable[[], Awaitable[ToolOutput]]) -> ToolOutput:
        """The recorded answer; ToolMistake if there is none. No service is asked."""
        with self._reading() as opened:
            row = opened.execute("SELECT value FROM answers WHERE key = ?", (digest_key(*request),)).fetchone()
        if row is None:
            self.misses += 1
            raise ToolMistake(NOT_RECORDED)
        self.found += 1
        return kept_output(row[0])

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if not self.file.is_file():
            raise InputError(f"{self._named}: there is no such file; `geofix export --as frozen-tools` writes one")
        try:
            if not hasattr(self._opened, "connection"):
                self._opened.connection = sqlite3.connect(f"{self.file.absolute().as_uri()}?mode=ro", uri=True)
            yield self._opened.connection
        except sqlite3.Error as error:
            raise InputError(f"{self._named} is no recording of tools: {error}") from error


def write_recording(state: Path, services: str, file: Path) -> Written:
    """Write what these services answered to tools of a lake, whose state folder this is, to a new file.

    The same answers make the same bytes.
    """
    kept: dict[str, tuple[str, str, bytes]] = {}
    without_question = of_others = 0
    source = state / FILE
    if source.is_file():
        with contextlib.closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as opened:
            for (value,) in opened.execute(
                "SELECT value FROM responses WHERE namespace = ? ORDER BY key", (NAMESPACE,)
            ):
                head, _ = unpack(value)
                if "asked" not in head:
                    without_question += 1
                elif head["services"] != services:
                    of_others += 1
                else:
                    tool, arguments, *_ = head["asked"]
                    kept[digest_key(*head["asked"])] = tool, json.dumps(arguments, ensure_ascii=False), value
    partial = file.with_name(file.name + ".partial")
    partial.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(partial)) as opened:
        opened.execute(_ANSWERS)
        opened.execute(_FACTS)
        opened.executemany("INSERT INTO facts VALUES (?, ?)", [("services", services), ("version", str(VERSION))])
        opened.executemany("INSERT INTO answers VALUES (?, ?, ?, ?)", [(key, *kept[key]) for key in sorted(kept)])
        opened.commit()
    partial.replace(file)
    tools = [tool for tool, _, _ in kept.values()]
    by_tool = {tool: tools.count(tool) for tool in sorted(set(tools))}
    return Written(len(kept), by_tool, without_question, of_others)
