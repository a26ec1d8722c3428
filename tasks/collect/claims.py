"""One fetch of a picture among all worker processes of a machine.

A picture's id leads to one of a fixed number of files. The process that holds the file's lock (flock: released when
its holder dies) fetches; the others wait and then read there what it found. A file remembers its latest pictures
only: places that share a picture are neighbours, and neighbours are collected one after the other.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tasks.collect.notes import OBSERVED_S, ended_s
from tasks.lake import Lake

FILES = 1024
MOST_BYTES = 32_768  # in one file: some forty pictures
LONGEST_POLL_S = 0.2

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Claim:
    """A claimed picture's file, or none where files cannot be had: then every process fetches for itself."""

    file: int | None = None

    def find(self, key: Key) -> dict[str, Any] | None:
        """What another process found for this picture, or None."""
        for line in reversed(self._lines()):
            with contextlib.suppress(ValueError, TypeError):
                stored, facts = json.loads(line)
                if tuple(stored) == key and isinstance(facts, dict):
                    return facts
        return None

    def add(self, key: Key, facts: dict[str, Any]) -> None:
        """Tell the other processes; the oldest pictures make room."""
        if self.file is None:
            return
        lines = [*self._lines(), json.dumps([key, facts]).encode()]
        while len(lines) > 1 and sum(map(len, lines)) > MOST_BYTES:
            del lines[0]
        with contextlib.suppress(OSError):  # a full disk: another process fetches the picture again
            os.ftruncate(self.file, 0)
            os.pwrite(self.file, b"\n".join(lines) + b"\n", 0)

    def _lines(self) -> list[bytes]:
        if self.file is None:
            return []
        try:
            return os.pread(self.file, 4 * MOST_BYTES, 0).splitlines()
        except OSError:
            return []


class Claims:
    """The claims of a stage's worker processes on one machine."""

    def __init__(self, folder: Path | None = None, since_s: float = 0.0) -> None:
        # As with notes, what a killed run found some time ago may have changed.
        self._folder, self._since_s = folder, max(since_s, time.time() - OBSERVED_S)

    @classmethod
    def of(cls, lake: Lake, stage: str) -> Self:
        """The claims of a stage on a lake."""
        return cls(lake.state / "claims" / stage, ended_s(lake, stage))

    @contextlib.asynccontextmanager
    async def claim(self, source_id: str) -> AsyncIterator[Claim]:
        """Hold the picture; waits while another process holds it."""
        file = self._open(source_id)
        if file is None:
            yield Claim()
            return
        try:
            poll_s = 0.01
            while not _locked(file):
                await asyncio.sleep(poll_s)
                poll_s = min(2 * poll_s, LONGEST_POLL_S)
            if os.fstat(file).st_mtime < self._since_s:
                os.ftruncate(file, 0)
            yield Claim(file)
        finally:
            os.close(file)

    def _open(self, source_id: str) -> int | None:
        if self._folder is None:
            return None
        # An id comes from outside and must not name a path.
        digest = hashlib.sha256(source_id.encode(errors="surrogatepass")).digest()
        name = f"{int.from_bytes(digest[:8], 'big') % FILES:04d}"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(self._folder / name, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return None


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
