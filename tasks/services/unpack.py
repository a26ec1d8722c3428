"""Compressed bodies, unpacked a piece at a time: a few bytes on the wire may hold gigabytes."""

import zlib
from collections.abc import Iterator

ACCEPTED = "gzip"  # what we ask for; a body in any other encoding, or in several, is no answer to that
PIECE = 1 << 20  # the most that is unpacked before the reader may stop
_GZIP = 16 + zlib.MAX_WBITS


class CannotUnpack(Exception):
    """The body is not what its header says; the message says how."""


class Unpacker:
    """The pieces of one body, by the encoding its header names."""

    def __init__(self, content_encoding: str) -> None:
        named = [kind for part in content_encoding.split(",") if (kind := part.strip().lower()) not in ("", "identity")]
        if named not in ([], ["gzip"], ["x-gzip"]):
            raise CannotUnpack(f"the body is encoded as {', '.join(named)[:40]!r}, which was not asked for")
        self._gzip = zlib.decompressobj(_GZIP) if named else None

    def unpack(self, data: bytes) -> Iterator[bytes]:
        """What these bytes hold."""
        if self._gzip is None:
            yield data
            return
        try:
            while data:
                if self._gzip.eof:  # a file of several members
                    self._gzip = zlib.decompressobj(_GZIP)
                yield self._gzip.decompress(data, PIECE)
                data = self._gzip.unconsumed_tail or self._gzip.unused_data
        except zlib.error:
            raise CannotUnpack("the body cannot be decompressed") from None

    def end(self) -> Iterator[bytes]:
        """What is left when all bytes have come."""
        if self._gzip is None:
            return
        yield self._gzip.flush()
        if not self._gzip.eof:
            raise CannotUnpack("the compressed body breaks off")
