"""Recorded answers of tools in one SQLite file: agents are trained and measured without asking any service.

A question is a tool's name, its arguments and the limits of its results; whom it was asked of does not matter, so a
recording can be used where those services are not. What was never asked is a miss: the agent is told that nothing is
recorded, and the run counts it. With a tolerance the nearest recorded question of the tool is answered instead: of the
same picture the box with the largest overlap, of texts the one with the most words in common.
"""

import contextlib
import json
import re
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from schemas.errors import InputError
from tasks.agent.toolbox import NAMESPACE, NOT_RECORDED, kept_output
from tasks.agent.tools import ToolMistake, ToolOutput
from tasks.services.response_store import FILE, digest_key, pack, unpack

VERSION = 1
TOOLS_FILE = "tools.sqlite"  # of a published set
BOX = "bbox_2d"  # the argument that is a box in the picture
_ANSWERS = "CREATE TABLE answers (key TEXT PRIMARY KEY, tool TEXT, arguments TEXT, value BLOB) WITHOUT ROWID"
_FACTS = "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT)"


@dataclass(frozen=True)
class Written:
    """What a recording holds, and what the lake holds besides it."""

    answers: int
    by_tool: dict[str, int]
    without_question: int  # kept by an older version, which did not write the question down
    of_others: int  # asked of other services than those that are configured
    of_other_pictures: int = 0  # asked about pictures that are not published
    pictures: int = 0  # answers that are pictures, whose licence is not known


class Recording:
    """A file of recorded answers, read by every worker; what it answered is counted in this process."""

    def __init__(self, file: str | Path, tolerance: tuple[float, float] | None = None) -> None:
        """`file` may be the folder of a published set. `tolerance` is the least overlap of boxes and the least share of
        common words; None: exactly or not."""
        folder = Path(file)
        self.file = folder / TOOLS_FILE if folder.is_dir() else folder
        self.misses, self.found, self.near = 0, 0, 0
        self._opened, self._tolerance = threading.local(), tolerance
        self._questions_of = lru_cache(maxsize=None)(self._questions)
        with self._reading() as opened:
            version = opened.execute("SELECT value FROM facts WHERE name = 'version'").fetchone()
        if version is None or version[0] != str(VERSION):
            raise InputError(f"{self._named}: this is a recording of another version; write it again")

    @property
    def _named(self) -> str:
        return f"services.tools.recording={self.file}"

    async def ask_once(self, request: Sequence[Any], ask: Callable[[], Awaitable[ToolOutput]]) -> ToolOutput:
        """The recorded answer; ToolMistake if there is none. No service is asked."""
        tool, arguments = str(request[0]), request[1]
        value, likeness = self._value(digest_key(*request)), 1.0
        if value is None and self._tolerance is not None:
            likes = ((alike(arguments, question, *self._tolerance), key) for key, question in self._questions_of(tool))
            likeness, key = max(likes, key=lambda like: like[0], default=(0.0, ""))  # the first of equals
            value = self._value(key) if likeness > 0 else None
        if value is None:
            self.misses += 1
            raise ToolMistake(NOT_RECORDED)
        self.near, self.found = self.near + (likeness < 1), self.found + (likeness == 1)
        return replace(kept_output(value), likeness=likeness)

    def _value(self, key: str) -> bytes | None:
        with self._reading() as opened:
            row = opened.execute("SELECT value FROM answers WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def _questions(self, tool: str) -> list[tuple[str, dict[str, Any]]]:
        """Key and arguments of every recorded question of a tool."""
        with self._reading() as opened:
            rows = opened.execute("SELECT key, arguments FROM answers WHERE tool = ? ORDER BY key", (tool,)).fetchall()
        return [(key, json.loads(arguments)) for key, arguments in rows]

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


def alike(question: dict[str, Any], recorded: dict[str, Any], least_iou: float, least_words: float) -> float:
    """How like a recorded question's arguments are, 0 to 1: the least of its boxes' overlap and its texts' words."""
    if question.keys() != recorded.keys():
        return 0.0
    likeness = 1.0
    for name, value in question.items():
        other = recorded[name]
        if value == other:
            continue
        if name == BOX and len(value) == len(other) == 4:
            like, least = iou(value, other), least_iou
        else:
            mine, theirs = words_of(value), words_of(other)
            like, least = len(mine & theirs) / max(1, len(mine | theirs)), least_words  # Jaccard
        if like <= 0 or like < least:
            return 0.0
        likeness = min(likeness, like)
    return likeness


def iou(box: Sequence[float], other: Sequence[float]) -> float:
    """Intersection over union of two boxes [x1, y1, x2, y2]; 0 where both are without area."""
    width, height = (min(box[n + 2], other[n + 2]) - max(box[n], other[n]) for n in (0, 1))
    shared = max(0.0, width) * max(0.0, height)
    whole = sum((one[2] - one[0]) * (one[3] - one[1]) for one in (box, other)) - shared
    return shared / whole if whole > 0 else 0.0


def words_of(value: Any) -> frozenset[str]:
    """The words of a text or of several; of anything else there are none."""
    texts = value if isinstance(value, list) else [value]
    return frozenset().union(*(_words(text) for text in texts if isinstance(text, str)))


@lru_cache(maxsize=65_536)
def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.casefold()))


# Whether a question may be published: the item that asked it first, and its arguments.
IsPublished = Callable[[str, dict[str, Any]], bool]


def write_recording(
    state: Path, services: str, file: Path, of_pictures: str = "", is_published: IsPublished | None = None
) -> Written:
    """Write what these services answered to tools of a lake, whose state folder this is, to a new file.

    `of_pictures` are those of tools that send a part of the picture. With `is_published` only what it allows is
    written, without answers that are pictures and without the servers' names. The same answers make the same bytes.
    """
    kept: dict[str, tuple[str, str, bytes]] = {}
    without_question = of_others = of_other_pictures = pictures = 0
    source = state / FILE
    if source.is_file():
        with contextlib.closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as opened:
            for item_id, value in opened.execute(
                "SELECT item_id, value FROM responses WHERE namespace = ? ORDER BY key", (NAMESPACE,)
            ):
                head, body = unpack(value)
                if "asked" not in head:
                    without_question += 1
                elif head["services"] not in (services, of_pictures):
                    of_others += 1
                elif is_published is not None and not is_published(item_id or "", head["asked"][1]):
                    of_other_pictures += 1
                elif is_published is not None and head.get("is_picture"):
                    pictures += 1
                else:
                    tool, arguments, *_ = head["asked"]
                    if is_published is not None:
                        value = pack({name: head[name] for name in head if name != "services"}, body)
                    kept[digest_key(*head["asked"])] = tool, json.dumps(arguments, ensure_ascii=False), value
    partial = file.with_name(file.name + ".partial")
    partial.unlink(missing_ok=True)
    facts = [("version", str(VERSION)), *([("services", services)] if is_published is None else [])]
    with contextlib.closing(sqlite3.connect(partial)) as opened:
        opened.execute(_ANSWERS)
        opened.execute(_FACTS)
        opened.executemany("INSERT INTO facts VALUES (?, ?)", sorted(facts))
        opened.executemany("INSERT INTO answers VALUES (?, ?, ?, ?)", [(key, *kept[key]) for key in sorted(kept)])
        opened.commit()
    partial.replace(file)
    tools = [tool for tool, _, _ in kept.values()]
    by_tool = {tool: tools.count(tool) for tool in sorted(set(tools))}
    return Written(len(kept), by_tool, without_question, of_others, of_other_pictures, pictures)
