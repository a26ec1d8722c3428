"""Pictures that have come and are not stored yet: their bytes outlive the process that asked for them.

Decoding waits for a thread, a changed picture waits for its place to be redone; a process killed in between leaves
the bytes here, and the next run takes them instead of asking again. A file is written under another name and renamed,
its head says when it came and its sha256, and whatever does not fit that is as good as not there. Nothing here is
needed: a full disk or a full spool costs a request, never a place.
"""

import contextlib
import hashlib
import json
import os
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from tasks.collect.notes import OBSERVED_S, ended_s
from tasks.lake import Lake

MOST_BYTES = 1_000_000_000  # in one spool, about: each worker looks only every few seconds what the others hold
MEASURE_S = 2.0
_LONGEST_HEAD = 4096


@dataclass(frozen=True)
class Came:
    """A picture as it came: its bytes, and what there is to say of the fetching."""

    data: bytes
    sha256: str
    etag: str | None  # the host's mark of these bytes
    request_url: str  # without its signature
    at: datetime

    @classmethod
    def now(cls, data: bytes, etag: str | None, request_url: str) -> Self:
        return cls(data, hashlib.sha256(data).hexdigest(), etag, request_url, datetime.now(UTC))


class Spool:
    """The bytes of one worker's pictures, and those that killed workers left."""

    def __init__(self, folder: Path | None = None, since_s: float = 0.0) -> None:
        self._folder, self._since_s = folder, since_s
        self._left: set[str] = set()  # names of files that were here before us
        self._bytes, self._measured_s = 0, float("-inf")
        if folder is not None and folder.is_dir():
            self._left = self._measure()

    @classmethod
    def of(cls, lake: Lake, stage: str) -> Self:
        """The spool of a stage on a lake."""
        return cls(lake.state / "spool" / stage, ended_s(lake, stage))

    def put(self, source_id: str, came: Came, observed_s: float = OBSERVED_S) -> None:
        """Keep a picture's bytes until they are dropped, or for `observed_s`."""
        if self._folder is None:
            return
        if time.monotonic() - self._measured_s > MEASURE_S:
            self._measure()
        if self._bytes + len(came.data) > MOST_BYTES:
            return
        path = self._path(source_id)
        temporary = path.with_name(f".{path.stem[:12]}-{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")
        head = {
            "source_id": source_id,
            "sha256": came.sha256,
            "etag": came.etag,
            "request_url": came.request_url,
            "at": came.at.isoformat(),
        }
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # originals, with all they say of their makers
            with temporary.open("wb") as file:  # to the system, which outlives us; the disk may have it or not
                file.write(json.dumps(head).encode() + b"\n")
                file.write(came.data)
            until_s = came.at.timestamp() + observed_s
            os.utime(temporary, (until_s, until_s))  # a file's time says until when it is observed
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            return
        self._bytes += len(came.data)

    def find(self, source_id: str, since_s: float = 0.0, sha256: str | None = None) -> Came | None:
        """What was left of a picture, if it came at that moment or later, or has this sha256."""
        if self._folder is None or (path := self._path(source_id)).name not in self._left:
            return None
        try:
            if path.stat().st_mtime < time.time():
                return None
            with path.open("rb") as file:
                came = _read(json.loads(file.readline(_LONGEST_HEAD)), source_id, file.read())
        except (OSError, ValueError, TypeError, KeyError):  # gone by now, half written, or not ours
            return None
        if came is None or (came.sha256 != sha256 and came.at.timestamp() < max(self._since_s, since_s)):
            return None
        return came

    def drop(self, source_id: str) -> None:
        """A picture is stored, or of no use."""
        if self._folder is None:
            return
        path = self._path(source_id)
        self._left.discard(path.name)
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            path.unlink()
            self._bytes -= size

    def _path(self, source_id: str) -> Path:
        # An id comes from outside and must not name a path.
        assert self._folder is not None
        return self._folder / f"{hashlib.sha256(source_id.encode(errors='surrogatepass')).hexdigest()}.picture"

    def _measure(self) -> set[str]:
        """Look at all that is here: delete what has expired, sum up and name the rest."""
        self._bytes, self._measured_s = 0, time.monotonic()
        names, now = set(), time.time()
        assert self._folder is not None
        try:
            for entry in os.scandir(self._folder):
                with contextlib.suppress(OSError):  # another worker was quicker
                    found = entry.stat(follow_symlinks=False)
                    if found.st_mtime < now - (OBSERVED_S if entry.name.endswith(".tmp") else 0.0):
                        Path(entry.path).unlink()
                        continue
                    self._bytes += found.st_size
                    names.add(entry.name)
        except OSError:
            return set()
        return names


def _read(head: dict[str, Any], source_id: str, data: bytes) -> Came | None:
    """The picture, if head and bytes agree."""
    if head["source_id"] != source_id or head["sha256"] != hashlib.sha256(data).hexdigest():
        return None
    at = datetime.fromisoformat(head["at"])
    return Came(data, str(head["sha256"]), head["etag"], str(head["request_url"]), at)
