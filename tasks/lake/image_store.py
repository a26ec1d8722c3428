"""Content-addressed images: `images/ab/abcd….jpg`, named by the sha256 of their bytes."""

import hashlib
import os
import re
import time
import uuid
from pathlib import Path

from schemas.errors import LakeError, LakeUnwritable

SHA256 = re.compile(r"[0-9a-f]{64}")
EXTENSIONS = ("jpg", "png")
STALE_SECONDS = 24 * 3600


class CorruptImage(LakeError):
    """The stored bytes are not the ones that were put there."""


class ImageStore:
    """Images under one folder. A file there is complete: it was renamed into place after it was on the disk."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, sha256: str, extension: str) -> Path:
        """Where the image is or would be. Names come from tables: anything but a hash is refused."""
        if not SHA256.fullmatch(sha256):
            raise LakeError(f"'{sha256[:80]}' is not a sha256")
        if extension not in EXTENSIONS:
            raise LakeError(f"image extension '{extension[:20]}' is not one of {', '.join(EXTENSIONS)}")
        return self.root / sha256[:2] / f"{sha256}.{extension}"

    def put(self, data: bytes, extension: str) -> str:
        """Store the bytes once; returns their sha256."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = self.path(sha256, extension)
        if path.exists() and path.stat().st_size == len(data):
            return sha256
        temporary = path.parent / f".{sha256[:12]}-{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise LakeUnwritable(
                f"image store '{self.root}' cannot be written: {error.strerror or error}; mend that and run again"
            ) from error
        return sha256

    def read(self, sha256: str, extension: str) -> bytes:
        """The image's bytes, checked against their name."""
        path = self.path(sha256, extension)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise CorruptImage(f"image {sha256}.{extension} is missing from {self.root}; collect it again") from None
        if hashlib.sha256(data).hexdigest() != sha256:
            raise CorruptImage(f"image {path} does not match its sha256; delete it and collect it again")
        return data

    def sweep(self) -> int:
        """Delete temporary files that a killed writer left a day ago or earlier; returns how many."""
        old = [p for p in self.root.glob("*/.*.tmp") if time.time() - p.stat().st_mtime > STALE_SECONDS]
        for path in old:
            path.unlink(missing_ok=True)
        return len(old)
