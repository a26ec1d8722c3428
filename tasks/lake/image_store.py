"""Content-addressed images: `images/ab/abcd….jpg`, named by the sha256 of their bytes."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from schemas.errors import LakeError
from tasks.lake.blobs import Blob, BlobMissing, Blobs

SHA256 = re.compile(r"[0-9a-f]{64}")
EXTENSIONS = ("jpg", "png")
FOLDER = "images"


class CorruptImage(LakeError):
    """The stored bytes are not the ones that were put there."""


class ImageStore:
    """The images of one lake. A stored image is complete."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def key(self, sha256: str, extension: str) -> str:
        """The image's key in the lake. Names come from tables: anything but a hash is refused."""
        if not SHA256.fullmatch(sha256):
            raise LakeError(f"'{sha256[:80]}' is not a sha256")
        if extension not in EXTENSIONS:
            raise LakeError(f"image extension '{extension[:20]}' is not one of {', '.join(EXTENSIONS)}")
        return f"{FOLDER}/{sha256[:2]}/{sha256}.{extension}"

    def path(self, sha256: str, extension: str) -> Path:
        """Where the image, or its copy on this machine, is or would be."""
        return self._blobs.local(self.key(sha256, extension))

    def uri(self, sha256: str, extension: str) -> str:
        """The image's address to show to people."""
        return self._blobs.uri(self.key(sha256, extension))

    def exists(self, sha256: str, extension: str) -> bool:
        return self._blobs.exists(self.key(sha256, extension))

    def put(self, data: bytes, extension: str) -> str:
        """Store the bytes once; returns their sha256."""
        sha256 = hashlib.sha256(data).hexdigest()
        self._blobs.keep(self.key(sha256, extension), data)
        return sha256

    def read(self, sha256: str, extension: str) -> bytes:
        """The image's bytes, checked against their name."""
        key = self.key(sha256, extension)
        try:
            data = self._blobs.get(key)
        except BlobMissing:
            raise CorruptImage(f"image {self._blobs.uri(key)} is missing; collect it again") from None
        if hashlib.sha256(data).hexdigest() != sha256:
            raise CorruptImage(f"image {self._blobs.uri(key)} does not match its sha256; delete it and collect again")
        return data

    def list(self, start: str = "") -> Iterator[Blob]:
        """The stored images, or those whose sha256 has these two first digits."""
        return (blob for blob in self._blobs.list(f"{FOLDER}/{start}") if _sha256_of(blob.key))


def _sha256_of(key: str) -> str:
    """The sha256 a key names; empty for any other file."""
    name = PurePosixPath(key)
    return name.stem if SHA256.fullmatch(name.stem) and name.suffix[1:] in EXTENSIONS else ""
