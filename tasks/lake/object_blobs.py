"""Blobs on an object store (S3, Google Cloud Storage, Azure), through obstore."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import from_url

from schemas.errors import LakeError, LakeUnwritable
from tasks.lake.blobs import Blob, BlobMissing, Blobs, checked
from tasks.lake.location import Location, allows_http
from tasks.lake.reading import first_line

TRANSFERS = 8  # files of a folder under way at once
RETRIES = {"max_retries": 6, "retry_timeout": timedelta(seconds=60)}


def store_problem(location: Location, error: BaseException | None) -> str:
    """Why a store could not be used at all, and what to check; `error` is what the library raised."""
    why = "the store gave no usable answer"
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        why = "the store refuses the credentials"
    elif isinstance(error, FileNotFoundError):
        why = "the store knows no such bucket"
    return f"{why}; {location.needs()}"


class ObjectBlobs(Blobs):
    """Objects below a prefix; an object store replaces an object whole or not at all."""

    is_local = False

    def __init__(self, location: Location, copies: Path) -> None:
        self._location, self._copies = location, copies
        options: Any = {"allow_http": allows_http()}
        retries: Any = RETRIES
        try:
            self._store: Any = from_url(location.uri, client_options=options, retry_config=retries)
        except (BaseError, ValueError) as error:
            raise LakeError(f"lake '{location.uri}' cannot be opened: {location.needs()}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectBlobs, (self._location, self._copies)  # each process reads its own environment

    def uri(self, key: str) -> str:
        return self._location.child(checked(key))

    @contextlib.contextmanager
    def _writing(self, key: str) -> Iterator[str]:
        """The checked key; what the store raises in the block says that it cannot be written."""
        try:
            yield checked(key)
        except (BaseError, OSError) as error:
            raise LakeUnwritable(f"{self.uri(key)} cannot be written: {self._why(error)}") from error

    @contextlib.contextmanager
    def _reading(self, key: str) -> Iterator[str]:
        """The checked key; what the store raises in the block becomes `BlobMissing`, or says why it cannot be read."""
        try:
            yield checked(key)
        except FileNotFoundError:
            raise BlobMissing(f"{self.uri(key)} is missing") from None
        except (BaseError, OSError) as error:
            raise LakeError(f"{self.uri(key)} cannot be read: {self._why(error)}") from error

    def _why(self, error: BaseException) -> str:
        refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)  # also in the middle of a run
        return store_problem(self._location, error) if refused else first_line(error)

    def put(self, key: str, data: bytes) -> None:
        with self._writing(key) as path:
            obstore.put(self._store, path, data)

    def keep(self, key: str, data: bytes) -> None:
        self.put(key, data)  # a look would cost a request as well, and leave the time as it was

    def create(self, key: str, data: bytes) -> bool:
        return self._put_if(key, data, "create")

    def replace(self, key: str, data: bytes, tag: str) -> bool:
        """Store the bytes if the blob still has this entity tag; False if another writer changed it."""
        return self._put_if(key, data, {"e_tag": tag})

    def _put_if(self, key: str, data: bytes, mode: Any) -> bool:
        with self._writing(key) as path:
            try:
                obstore.put(self._store, path, data, mode=mode)
            except (AlreadyExistsError, PreconditionError, FileNotFoundError):
                return False
        return True

    def get_tagged(self, key: str) -> tuple[bytes, str] | None:
        """The blob's bytes and its entity tag, or None."""
        with contextlib.suppress(BlobMissing), self._reading(key) as path:
            stored = obstore.get(self._store, path)
            return bytes(stored.bytes()), str(stored.meta["e_tag"])
        return None

    def get(self, key: str) -> bytes:
        with self._reading(key) as path:
            return bytes(obstore.get(self._store, path).bytes())

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._reading(key) as path:
            return bytes(obstore.get_range(self._store, path, start=start, length=length))

    def find(self, key: str) -> Blob | None:
        with contextlib.suppress(BlobMissing), self._reading(key) as path:
            head = obstore.head(self._store, path)
            return Blob(key, head["size"], head["last_modified"].timestamp())
        return None

    def list(self, prefix: str) -> Iterator[Blob]:
        with self._reading(prefix) as path:
            for part in obstore.list(self._store, prefix=path):
                for entry in part:
                    yield Blob(entry["path"], entry["size"], entry["last_modified"].timestamp())

    def delete(self, key: str) -> None:
        with self._writing(key) as path, contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, path)

    def local(self, key: str) -> Path:
        return self._copies / checked(key)

    def push(self, prefix: str, last: str = "") -> None:
        top = self.local(prefix)
        paths = [path for path in top.rglob("*") if path.is_file()] if top.is_dir() else [top]
        with ThreadPoolExecutor(TRANSFERS) as pool:
            list(pool.map(self._upload, (path for path in paths if path.name != last)))
        for path in paths:
            if path.name == last:
                self._upload(path)

    def _upload(self, path: Path) -> None:
        key = path.relative_to(self._copies).as_posix()
        with self._writing(key):
            obstore.put(self._store, key, path)  # in parts, if it is large
        blob = self.find(key)
        if blob is not None:
            os.utime(path, (blob.modified_s, blob.modified_s))  # so that `pull` knows it as current

    def pull(self, prefix: str) -> Path:
        with ThreadPoolExecutor(TRANSFERS) as pool:
            blobs = list(self.list(prefix)) or [blob for blob in [self.find(prefix)] if blob]
            list(pool.map(self._download, blobs))
        return self.local(prefix)

    def _download(self, blob: Blob) -> None:
        path = self.local(blob.key)
        if path.is_file() and (path.stat().st_size, int(path.stat().st_mtime)) == (blob.size, int(blob.modified_s)):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name[:12]}-{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")
        try:
            with self._reading(blob.key):
                with temporary.open("wb") as file:
                    for part in obstore.get(self._store, blob.key):
                        file.write(part)
                os.utime(temporary, (blob.modified_s, blob.modified_s))
                temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
