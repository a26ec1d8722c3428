"""What a run that was killed had been told already, so that places under way are not asked for twice.

Answers are appended to a file as they come, before anything is committed. A run that ends well has committed all it
did, so the next one observes only notes younger than the newest such run, and none older than half an hour: what a
service said then may have changed. Where a check has found that it did, only what was said after it counts. A worker
observes what was noted before it began.
"""

import contextlib
import copy
import json
import os
import time
import uuid
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Self

import polars as pl

from tasks.lake import Lake
from tasks.services import Connection, Mapillary

OBSERVED_S = 1800.0
SEGMENT_S = 300.0  # age at which a new file is begun and expired ones are deleted
MOST_ROWS = 300  # a longer answer is rather asked for again than written down
_URL = "thumb_original_url"  # signed: it stays out of every file, and a new one is asked for


class Notes:
    """The notes of one worker, and those that killed workers left."""

    def __init__(self, folder: Path | None = None, since_s: float = 0.0) -> None:
        self._folder = folder
        self._file: IO[str] | None = None
        self._begun_s = 0.0
        self._left: dict[str, tuple[float, Any]] = {}
        if folder is not None and folder.is_dir():
            self._read(max(since_s, time.time() - OBSERVED_S))

    @classmethod
    def of(cls, lake: Lake, stage: str) -> "Notes":
        """The notes of a stage on a lake."""
        return cls(lake.state / "notes" / stage, ended_s(lake, stage))

    def find(self, *key: Any, since_s: float = 0.0) -> Any | None:
        """What a killed run was told about this, at that moment or later, or None."""
        moment, value = self._left.get(_name(key), (0.0, None))
        return value if moment >= since_s else None

    def add(self, value: Any, *key: Any) -> None:
        """Note what was told."""
        if self._folder is None:
            return
        now = time.time()
        try:
            if self._file is None or now - self._begun_s > SEGMENT_S:
                self._next_file(now)
            assert self._file is not None
            self._file.write(json.dumps([now, _name(key), value]) + "\n")
            # to the system, which outlives us; not to the disk, which would cost more than a request
            self._file.flush()
        except OSError:  # a full disk: what is not noted is asked for again
            if self._file is not None:
                with contextlib.suppress(OSError):
                    self._file.close()
            self._file = None

    def _next_file(self, now: float) -> None:
        assert self._folder is not None
        if self._file is not None:
            self._file.close()
        self._folder.mkdir(parents=True, exist_ok=True)
        for old in self._folder.glob("*.jsonl"):
            try:
                if now - old.stat().st_mtime > OBSERVED_S:
                    old.unlink()
            except FileNotFoundError:
                continue  # another worker was quicker
        name = f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        self._file, self._begun_s = (self._folder / name).open("a"), now

    def _read(self, since_s: float) -> None:
        assert self._folder is not None
        for path in sorted(self._folder.glob("*.jsonl")):
            try:
                lines = path.read_text(errors="replace").splitlines()
            except FileNotFoundError:
                continue
            for line in lines:
                try:
                    moment, name, value = json.loads(line)
                except ValueError:
                    continue  # the line its writer was killed in
                if isinstance(moment, float) and moment > max(since_s, self._left.get(name, (0.0, None))[0]):
                    self._left[name] = moment, value


def ended_s(lake: Lake, stage: str) -> float:
    """When the newest run of a stage ended that has committed all it did."""
    runs = lake.read("runs", columns=["stage", "status", "finished_at"])
    ended = runs.filter((pl.col("stage") == stage) & pl.col("status").str.starts_with("done"))["finished_at"].max()
    return ended.timestamp() if isinstance(ended, datetime) else 0.0


def _name(key: tuple[Any, ...]) -> str:
    return json.dumps(key, separators=(",", ":"))


class RecallingMapillary(Mapillary):
    """The service, but for boxes that a killed run has been told about."""

    def __init__(self, connection: Connection, notes: Notes) -> None:
        super().__init__(connection)
        self._notes = notes
        self._since_s = 0.0

    def since(self, since_s: float) -> Self:
        """The same service, remembering only what was said at that moment or later."""
        other = copy.copy(self)
        other._since_s = since_s
        return other

    async def images_in_box(
        self,
        west: float,
        south: float,
        east: float,
        north: float,
        fields: Sequence[str] = (),
        is_pano: bool | None = None,
        limit: int = MOST_ROWS,
    ) -> list[dict[str, Any]]:
        """The images in a box."""
        key = ("box", west, south, east, north, list(fields), is_pano, limit)
        told: list[dict[str, Any]] | None = self._notes.find(*key, since_s=self._since_s)
        if told is not None:
            return told
        rows = await super().images_in_box(west, south, east, north, fields, is_pano, limit)
        if len(rows) <= MOST_ROWS:
            self._notes.add([{name: row[name] for name in row if name != _URL} for row in rows], *key)
        return rows
