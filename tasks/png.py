"""A PNG without what its pixels do not need."""

import struct
import zlib
from collections.abc import Container

from tasks.colour_profile import plain_profile
from tasks.decode import BadImage

# What stays beside the pixels, by its right length: more bytes than that are read by nobody and could say anything.
_KEPT: dict[bytes, Container[int]] = {
    b"IHDR": {13}, b"gAMA": {4}, b"cHRM": {32}, b"sRGB": {1}, b"sBIT": range(1, 5), b"bKGD": {1, 2, 6}, b"pHYs": {9},
}  # fmt: skip
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
_TRANSPARENT: dict[int, Container[int]] = {0: {2}, 2: {6}, 3: range(1, 257)}
# First column and row of each pass of an interlaced picture, and the steps between them.
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def without_metadata(data: bytes) -> bytes:
    """The same picture with nothing but what decoding needs, and its colour profile reduced to its numbers."""
    kept = bytearray(data[:8])
    header = data[16:29]
    pixels: list[bytes] = []
    place = at = 8
    while at + 12 <= len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        name, body = data[at + 4 : at + 8], data[at + 8 : end - 4]
        if name == b"IEND":
            kept[place:place] = _exactly(pixels, header)
            return bytes(kept + chunk(b"IEND", b""))
        if name == b"IDAT":
            place = place if pixels else len(kept)
            pixels.append(body)
        elif len(body) in _KEPT.get(name, ()) or _is_needed(name, len(body), header[9]):
            kept += data[at:end]
        elif name == b"iCCP":
            kept += _profile(body)
        at = end
    raise BadImage("truncated", "a PNG without its end")


def chunk(name: bytes, body: bytes) -> bytes:
    """A part of a PNG file."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _is_needed(name: bytes, length: int, colour_type: int) -> bool:
    """Whether it is the palette of a picture that has one, or says which colours are transparent."""
    if name == b"PLTE":
        return colour_type == 3 and length <= 768
    return name == b"tRNS" and length in _TRANSPARENT.get(colour_type, ())


def _exactly(pixels: list[bytes], header: bytes) -> bytes:
    """The packed pixels as they are, unless something lies behind them."""
    size, stream = _size(header), zlib.decompressobj()
    found = stream.decompress(b"".join(pixels), size)
    more = stream.decompress(stream.unconsumed_tail, 1)
    if more or stream.unused_data:
        return chunk(b"IDAT", zlib.compress(found, 9))
    return b"".join(chunk(b"IDAT", part) for part in pixels)


def _size(header: bytes) -> int:
    """Bytes of the unpacked pixels: every row begins with one that names its filter."""
    width, height, bits, colour_type, _, _, interlaced = struct.unpack(">IIBBBBB", header)

    def part(columns: int, rows: int) -> int:
        return rows * (1 + -(-columns * bits * _CHANNELS[colour_type] // 8)) if columns > 0 else 0

    if not interlaced:
        return part(width, height)
    return sum(part(-(-(width - x) // dx), max(0, -(-(height - y) // dy))) for x, y, dx, dy in _PASSES)


def _profile(body: bytes) -> bytes:
    try:
        profile = zlib.decompressobj().decompress(body[body.index(b"\0") + 2 :], 16_000_000)
    except (ValueError, zlib.error):
        return b""
    plain = plain_profile(profile)
    if not plain:
        return b""
    return chunk(b"iCCP", b"icc\0\0" + zlib.compress(plain, 9))
