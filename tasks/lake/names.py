"""Names that reveal nothing: what a model or a tool may see of a picture's origin.

A plain hash of a source's id can be undone by hashing every possible id. These hashes are keyed with random bytes
that stay in the lake: without them they look random, and redone work gives the same names.
The `images` table leads back from a name to its source; so does the credit that licences ask for, which no model sees.
"""

import hashlib
import json
import secrets
from functools import cached_property

from schemas.errors import LakeError
from tasks.lake.blobs import BlobMissing, Blobs

KEY_FILE = "names.key"
KEY_BYTES = 32
LENGTH = 24


class Names:
    """The names of one lake."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def ensure(self) -> None:
        """Create the key of a lake without images; where ids exist already, a new key would give other ones.

        Of several writers that create it at once, one succeeds and all use its key.
        """
        if not self._blobs.exists(KEY_FILE) and next(iter(self._blobs.list("tables/images")), None) is None:
            self._blobs.create(KEY_FILE, new_key().encode())

    def name(self, *parts: str) -> str:
        """24 hex digits that follow from the parts and the lake's key."""
        text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), key=self._key, digest_size=LENGTH // 2).hexdigest()

    def secret(self, purpose: str) -> bytes:
        """32 bytes that follow from the purpose and the lake's key, and tell nothing about it."""
        return hashlib.blake2b(purpose.encode(), key=self._key, person=b"geofix secret", digest_size=32).digest()

    @cached_property
    def _key(self) -> bytes:
        where = self._blobs.uri(KEY_FILE)
        try:
            self.ensure()
            key = bytes.fromhex(self._blobs.get(KEY_FILE).decode("ascii").strip())
        except BlobMissing as error:
            raise LakeError(
                f"{where} is missing, and every image id of this lake follows from it; restore it from a backup"
            ) from error
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise LakeError(
                f"{where} is damaged: it holds {KEY_BYTES} bytes as hex digits, and every image id of this lake "
                "follows from them; restore it from a backup"
            )
        return key


def new_key() -> str:
    """Random bytes as hex digits."""
    return secrets.token_hex(KEY_BYTES)
