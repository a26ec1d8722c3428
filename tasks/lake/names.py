"""Names that give nothing away: what a model or a tool may see of a picture's origin.

A plain hash of a source's id can be undone by hashing every id there is. These hashes are keyed with random bytes
that stay in the lake, so they look random to anybody else, and still come out the same when work is done again.
The `images` table leads back from a name to its source; so does the credit that licences ask for, which no model sees.
"""

import contextlib
import hashlib
import json
import os
import secrets
import uuid
from functools import cached_property
from pathlib import Path

from schemas.errors import LakeError

KEY_FILE = "names.key"
KEY_BYTES = 32
LENGTH = 24


class Names:
    """The names of one lake."""

    def __init__(self, root: Path) -> None:
        self._path = root / KEY_FILE

    def ensure(self) -> None:
        """Make the key of a lake that has named nothing yet; of any other a new one would give other names."""
        if not self._path.exists() and not (self._path.parent / "tables" / "images").exists():
            _create(self._path)

    def name(self, *parts: str) -> str:
        """24 hex digits that follow from the parts and the lake's key."""
        text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), key=self._key, digest_size=LENGTH // 2).hexdigest()

    @cached_property
    def _key(self) -> bytes:
        try:
            self.ensure()
            key = bytes.fromhex(self._path.read_text("ascii").strip())
        except FileNotFoundError as error:
            raise LakeError(
                f"{self._path} is missing, and every image id of this lake follows from it; put it back from a copy"
            ) from error
        except OSError as error:
            raise LakeError(f"the key of the lake's names, {self._path}, is out of reach: {error.strerror}") from error
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise LakeError(
                f"{self._path} is damaged: it holds {KEY_BYTES} bytes as hex digits, and every image id of this lake "
                "follows from them; put it back from a copy"
            )
        return key


def new_key() -> str:
    """Random bytes as hex digits."""
    return secrets.token_hex(KEY_BYTES)


def _create(path: Path) -> None:
    """A new key, whole or not at all; of several that are made at once one wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(new_key())
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
    finally:
        part.unlink(missing_ok=True)
