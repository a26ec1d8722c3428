"""The parts of a PNG file, without decoding it."""

import struct
import zlib
from collections.abc import Container, Iterator

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_TELLING = {b"eXIf", b"tEXt", b"zTXt", b"iTXt"}  # may stand behind the pixels
PACKED = {b"iCCP", b"tEXt", b"zTXt", b"iTXt"}  # may unpack to more than they should, and no pixel needs them


def parts(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Every part up to the end: its name, and all of it with length and checksum; what is cut off is left out."""
    at = len(SIGNATURE)
    while at + 12 <= len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        if end > len(data):
            return
        name = data[at + 4 : at + 8]
        yield name, data[at:end]
        if name == b"IEND":
            return
        at = end


def chunk(name: bytes, body: bytes) -> bytes:
    """A part of a PNG file."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png_header(data: bytes, left_out: Container[bytes] = ()) -> bytes | None:
    """All but the pixels, with what stands behind them before them; None when it is no PNG, or has no pixels."""
    if not data.startswith(SIGNATURE):
        return None
    before, behind, has_pixels = bytearray(), bytearray(), False
    for name, part in parts(data):
        if name == b"IDAT":
            has_pixels = True
        elif name in left_out:
            continue
        elif not has_pixels:
            before += part
        elif name in _TELLING:
            behind += part
    return SIGNATURE + before + behind + chunk(b"IDAT", b"") + chunk(b"IEND", b"") if has_pixels else None


def png_pixels(data: bytes) -> bytes:
    """The file without texts and profiles."""
    at, kept = len(SIGNATURE), bytearray(SIGNATURE)
    for name, part in parts(data):
        if name not in PACKED:
            kept += part
        at += len(part)
    return bytes(kept) + data[at:]
