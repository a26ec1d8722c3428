"""Answers of the scene archive kept on disk, so that a run after a kill does not ask for them again.

A run that ends well has committed all it did, so the next one uses only what is younger than the newest such run, and
nothing older than half an hour. Nothing here is needed: a full disk costs a request, never a picture.
"""

import contextlib
import hashlib
import json
import os
import time
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from tasks.collect.notes import OBSERVED_S, ended_s
from tasks.lake import Lake
from tasks.services import Connection, Stac
from tasks.services.stac import Box

MOST_BYTES = 1_000_000_000
MEASURE_BYTES = 50_000_000  # written by this worker between two looks at the folder
_DIGEST_BYTES = 32


class ReadCache:
    """Bytes by key, in files that are written under another name and renamed; each begins with its sha256."""

    def __init__(self, folder: Path | None = None, since_s: float = 0.0) -> None:
        self._folder, self._since_s = folder, since_s
        self._written = MEASURE_BYTES  # the folder is looked at with the first file

    @classmethod
    def of(cls, lake: Lake, stage: str) -> Self:
        """The cache of a stage on a lake."""
        return cls(lake.state / "spool" / stage, ended_s(lake, stage))

    def get(self, *key: Any) -> bytes | None:
        """What was kept under a key and is young enough, or None."""
        if self._folder is None:
            return None
        try:
            path = self._path(key)
            if path.stat().st_mtime < max(self._since_s, time.time() - OBSERVED_S):
                return None
            held = path.read_bytes()
        except OSError:
            return None
        data = held[_DIGEST_BYTES:]
        return data if hashlib.sha256(data).digest() == held[:_DIGEST_BYTES] else None

    def put(self, data: bytes, *key: Any) -> None:
        """Keep an answer."""
        if self._folder is None:
            return
        path = self._path(key)
        temporary = path.with_name(f".{path.name[:12]}-{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._written >= MEASURE_BYTES:
                self._trim()
            with temporary.open("wb") as file:
                file.write(hashlib.sha256(data).digest())
                file.write(data)
            temporary.replace(path)
            self._written += len(data)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _path(self, key: tuple[Any, ...]) -> Path:
        assert self._folder is not None
        name = hashlib.blake2b(json.dumps(key).encode(), digest_size=16).hexdigest()
        return self._folder / name

    def _trim(self) -> None:
        """Delete what is too old, and the oldest of what is too much."""
        assert self._folder is not None
        self._written, left, oldest_s = 0, MOST_BYTES, time.time() - OBSERVED_S
        found = []
        for entry in os.scandir(self._folder):
            with contextlib.suppress(FileNotFoundError):  # another worker deleted it
                found.append((entry.stat().st_mtime, entry.stat().st_size, entry.path))
        for moment_s, size, path in sorted(found, reverse=True):
            left -= size
            if moment_s < oldest_s or left < 0:
                Path(path).unlink(missing_ok=True)


class CachedStac(Stac):
    """The archive, but for what a killed run has been answered."""

    def __init__(self, connection: Connection, cache: ReadCache) -> None:
        super().__init__(connection)
        self._cache = cache

    async def search(
        self, collection: str, box: Box, start: datetime, end: datetime, max_cloud_percent: float = 100.0
    ) -> list[dict[str, Any]]:
        key = ("search", collection, box, start.isoformat(), end.isoformat(), max_cloud_percent)
        held = self._cache.get(*key)
        if held is not None:
            kept: list[dict[str, Any]] = json.loads(held)
            return kept
        rows = await super().search(collection, box, start, end, max_cloud_percent)
        self._cache.put(json.dumps(rows).encode(), *key)
        return rows

    async def read(self, href: str, start: int, end: int) -> bytes:
        held = self._cache.get("read", href, start, end)
        if held is not None:
            return held
        data = await super().read(href, start, end)
        self._cache.put(data, "read", href, start, end)
        return data
