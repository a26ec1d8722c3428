"""What a run that was killed had been told already, so that places under way are not asked for twice.

Answers are appended to a file as they come, before anything is committed. A run that ends well has committed all it
did, so the next one heeds only notes younger than the newest such run, and none older than half an hour: what a
service said then may have changed. A worker heeds what was noted before it began.
"""

import json
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import polars as pl

from tasks.lake import Lake
from tasks.services import Connection, Mapillary

HEEDED_S = 1800.0
SEGMENT_S = 300.0  # a new file after so long, and files past their time are deleted
MOST_ROWS = 300  # a longer answer is rather asked for again than written down
_URL = "thumb_original_url"  # signed: it stays out of every file, and a new one is asked for


class Notes:
    """The notes of one worker, and those that killed workers left."""

    def __init__(self, folder: Path | None = None, since_s: float = 0.0) -> None:
        self._folder = folder
        self._file: IO[str] | None = None
        self._begun_s = 0.0
        self._left: dict[str, Any] = {}
        if folder is not None and folder.is_dir():
            self._read(max(since_s, time.time() - HEEDED_S))

    @classmethod
    def of(cls, lake: Lake, stage: str) -> "Notes":
        """The notes of a stage on a lake."""
        runs = lake.read("runs", columns=["stage", "status", "finished_at"])
        ended = runs.filter((pl.col("stage") == stage) & pl.col("status").str.starts_with("done"))["finished_at"].max()
        return cls(lake.root / ".state" / "notes" / stage, ended.timestamp() if ended else 0.0)  # type: ignore[union-attr]

    def find(self, *key: Any) -> Any | None:
        """What a killed run was told about this, or None."""
        return self._left.get(_name(key))

    def add(self, value: Any, *key: Any) -> None:
        """Note what was told."""
        if self._folder is None:
            return
        now = time.time()
        if self._file is None or now - self._begun_s > SEGMENT_S:
            self._next_file(now)
        assert self._file is not None
        self._file.write(json.dumps([now, _name(key), value]) + "\n")
        self._file.flush()  # to the system, which outlives us; not to the disk, which would cost more than a request

    def _next_file(self, now: float) -> None:
        assert self._folder is not None
        if self._file is not None:
            self._file.close()
        self._folder.mkdir(parents=True, exist_ok=True)
        for old in self._folder.glob("*.jsonl"):
            try:
                if now - old.stat().st_mtime > HEEDED_S:
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
                if isinstance(moment, float) and moment > since_s:
                    self._left[name] = value


def _name(key: tuple[Any, ...]) -> str:
    return json.dumps(key, separators=(",", ":"))


class RecallingMapillary(Mapillary):
    """The service, but for boxes that a killed run has been told about."""

    def __init__(self, connection: Connection, notes: Notes) -> None:
        super().__init__(connection)
        self._notes = notes

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
        told: list[dict[str, Any]] | None = self._notes.find(*key)
        if told is not None:
            return told
        rows = await super().images_in_box(west, south, east, north, fields, is_pano, limit)
        if len(rows) <= MOST_ROWS:
            self._notes.add([{name: row[name] for name in row if name != _URL} for row in rows], *key)
        return rows
