"""Whole files by key: pictures, checkpoints, reports, the key of the names. On local disk or an object store.

A key is a relative path with '/' ("images/ab/abcd….jpg"). A blob is complete or absent, never half written.
"""

import contextlib
import os
import shutil
import stat
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from schemas.errors import LakeError, LakeUnwritable


@dataclass(frozen=True)
class Blob:
    """One stored file."""

    key: str
    size: int
    modified_s: float  # seconds since 1970


class BlobMissing(LakeError):
    """No blob has this key."""


class Blobs(ABC):
    """Files by key."""

    is_local: bool

    @abstractmethod
    def uri(self, key: str) -> str:
        """The address to show to people."""

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Store the bytes under the key, replacing what is there."""

    @abstractmethod
    def keep(self, key: str, data: bytes) -> None:
        """Store bytes that the key determines, if need be; either way their time is now."""

    @abstractmethod
    def create(self, key: str, data: bytes) -> bool:
        """Store the bytes if the key is free; False if another writer has it. Only the owner may read the file."""

    @abstractmethod
    def get(self, key: str) -> bytes:
        """The blob's bytes, or `BlobMissing`."""

    @abstractmethod
    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Some of the blob's bytes, fewer at its end."""

    @abstractmethod
    def find(self, key: str) -> Blob | None:
        """Size and time of a blob, or None."""

    @abstractmethod
    def list(self, prefix: str) -> Iterator[Blob]:
        """The blobs below a folder's key, in no order."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete the blob; a missing one is fine."""

    @abstractmethod
    def local(self, key: str) -> Path:
        """The path of the file or folder itself (local), or of its copy on this machine, which may not exist yet."""

    @abstractmethod
    def push(self, prefix: str, last: str = "") -> None:
        """Upload the local copy of a folder, the file of this name after all others (local: nothing to do)."""

    @abstractmethod
    def pull(self, prefix: str) -> Path:
        """The local copy of a folder or file, downloaded where it is missing or old (local: the path itself)."""

    def exists(self, key: str) -> bool:
        return self.find(key) is not None


def checked(key: str) -> str:
    """The key, unless it leads out of the lake: keys also come from tables."""
    parts = PurePosixPath(key).parts
    if not parts or parts[0] == "/" or ".." in parts or "\\" in key or "\0" in key:
        raise LakeError(f"'{key[:120]}' is not a key inside the lake")
    return key.strip("/")


class LocalBlobs(Blobs):
    """Files below a folder, written under a temporary name, synced and renamed."""

    is_local = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def uri(self, key: str) -> str:
        return str(self.local(key))

    def put(self, key: str, data: bytes) -> None:
        path = self.local(key)
        with self._written(path, data, 0o666) as temporary:
            temporary.replace(path)

    def keep(self, key: str, data: bytes) -> None:
        with contextlib.suppress(OSError):
            if self.local(key).stat().st_size == len(data):
                os.utime(self.local(key))  # for maintenance, which deletes old pictures that no row names
                return
        self.put(key, data)

    def create(self, key: str, data: bytes) -> bool:
        path = self.local(key)
        with self._written(path, data, 0o600) as temporary:
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            return True

    @contextlib.contextmanager
    def _written(self, path: Path, data: bytes, mode: int) -> Iterator[Path]:
        """The bytes, on the disk, in a temporary file beside the path; it is gone afterwards."""
        temporary = path.with_name(f".{path.name[:12]}-{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        except OSError as error:
            raise LakeUnwritable(
                f"'{path.parent}' cannot be written: {error.strerror or error}; mend that and run again"
            ) from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def get(self, key: str) -> bytes:
        with self._reading(key) as path:
            return path.read_bytes()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._reading(key) as path, path.open("rb") as file:
            file.seek(start)
            return file.read(length)

    @contextlib.contextmanager
    def _reading(self, key: str) -> Iterator[Path]:
        path = self.local(key)
        try:
            yield path
        except (FileNotFoundError, NotADirectoryError):
            raise BlobMissing(f"{path} is missing") from None
        except OSError as error:
            raise LakeError(f"{path} cannot be read: {error.strerror or error}") from error

    def find(self, key: str) -> Blob | None:
        try:
            with self._reading(key) as path:
                info = path.stat()
        except BlobMissing:
            return None
        return Blob(key, info.st_size, info.st_mtime) if stat.S_ISREG(info.st_mode) else None

    def list(self, prefix: str) -> Iterator[Blob]:
        top = self.local(prefix)
        for folder, _, names in os.walk(top, onerror=_refuse):
            for name in names:
                if name.startswith(".") and name.endswith(".tmp"):
                    continue
                path = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    info = path.stat()
                    yield Blob(path.relative_to(self._folder).as_posix(), info.st_size, info.st_mtime)

    def temporaries(self, prefix: str) -> Iterator[Blob]:
        """Temporary files: of writers at work, or left by killed ones."""
        for path in self.local(prefix).rglob(".*.tmp"):
            with contextlib.suppress(FileNotFoundError):
                info = path.stat()
                yield Blob(path.relative_to(self._folder).as_posix(), info.st_size, info.st_mtime)

    def delete(self, key: str) -> None:
        path = self.local(key)
        try:
            path.unlink(missing_ok=True)
        except IsADirectoryError:
            shutil.rmtree(path)
        except OSError as error:
            raise LakeUnwritable(f"{path} cannot be deleted: {error.strerror or error}") from error

    def local(self, key: str) -> Path:
        return self._folder / checked(key)

    def push(self, prefix: str, last: str = "") -> None:
        return

    def pull(self, prefix: str) -> Path:
        return self.local(prefix)


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # what cannot be listed is not missing
        raise LakeError(f"'{error.filename}' cannot be read: {error.strerror or error}") from error
