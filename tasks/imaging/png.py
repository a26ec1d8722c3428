"""A PNG without what its pixels do not need."""

import io
import struct
import zlib
from collections.abc import Container

import numpy as np
from PIL import Image

from tasks.imaging.colour_profile import plain_profile
from tasks.imaging.decode import BadImage
from tasks.imaging.png_parts import SIGNATURE, chunk, parts, png_pixels

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
_TRANSPARENT: dict[int, Container[int]] = {0: {2}, 2: {6}}
# First column and row of each pass of an interlaced picture, and the steps between them.
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def without_metadata(data: bytes) -> bytes:
    """The same picture with nothing but what decoding needs, and its colour profile reduced to its numbers.

    What says how colours are meant stays where it makes sense. What does not (a resolution, a background, a palette
    for other screens) is left out, for text could stand there.
    """
    before: dict[bytes, bytes] = {}
    pixels: list[bytes] = []
    for name, part in parts(data):
        body = part[8:-4]
        if name == b"IDAT":
            pixels += [body] if body else []
        elif name == b"IEND":
            return SIGNATURE + _head(before, data) + _exactly(pixels, before[b"IHDR"]) + chunk(b"IEND", b"")
        elif not pixels:
            before[name] = body
    raise BadImage("truncated", "a PNG without its end")


def _head(found: dict[bytes, bytes], data: bytes) -> bytes:
    header = found[b"IHDR"][:13]
    bits, colour_type = header[8], header[9]
    kept = chunk(b"IHDR", header) + _profile(found.get(b"iCCP", b""))
    kept += b"".join(chunk(name, body) for name, body in found.items() if _is_sane(name, body))
    if colour_type == 3:
        return kept + _palette(found.get(b"PLTE", b""), found.get(b"tRNS", b""), data)
    clear = found.get(b"tRNS", b"")
    if len(clear) in _TRANSPARENT.get(colour_type, ()) and all(
        n >> bits == 0 for (n,) in struct.iter_unpack(">H", clear)
    ):
        kept += chunk(b"tRNS", clear)
    return kept


def _is_sane(name: bytes, body: bytes) -> bool:
    """Whether it says how colours are meant, in numbers that can be."""
    if name == b"sRGB":
        return len(body) == 1 and body[0] < 4
    if name == b"gAMA":
        return len(body) == 4 and 10_000 <= int.from_bytes(body, "big") <= 1_000_000
    return name == b"cHRM" and len(body) == 32 and all(n <= 100_000 for (n,) in struct.iter_unpack(">I", body))


def _palette(colours: bytes, clear: bytes, data: bytes) -> bytes:
    """The colours that a pixel has; transparent ones black."""
    with Image.open(io.BytesIO(png_pixels(data)), formats=["PNG"]) as picture:
        used = np.bincount(np.asarray(picture).ravel(), minlength=256)[: len(colours) // 3] > 0
    count = int(np.flatnonzero(used)[-1]) + 1 if used.any() else 1
    table = np.frombuffer(colours[: 3 * len(used)], np.uint8).reshape(-1, 3) * used[:, None]
    kept = chunk(b"PLTE", table[:count].astype(np.uint8).tobytes())
    opacity = np.frombuffer(clear[: len(used)], np.uint8)[:count]
    opacity = np.where(used[: len(opacity)], opacity, 255).astype(np.uint8)
    return kept + chunk(b"tRNS", opacity.tobytes()) if len(opacity) else kept


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
    width, height, bits, colour_type, _, _, interlaced = struct.unpack(">IIBBBBB", header[:13])

    def part(columns: int, rows: int) -> int:
        return rows * (1 + -(-columns * bits * _CHANNELS[colour_type] // 8)) if columns > 0 else 0

    if not interlaced:
        return part(width, height)
    return sum(part(-(-(width - x) // dx), max(0, -(-(height - y) // dy))) for x, y, dx, dy in _PASSES)


def _profile(body: bytes) -> bytes:
    if not body:
        return b""
    try:
        profile = zlib.decompressobj().decompress(body[body.index(b"\0") + 2 :], 16_000_000)
    except (ValueError, zlib.error):
        return b""
    plain = plain_profile(profile)
    if not plain:
        return b""
    return chunk(b"iCCP", b"icc\0\0" + zlib.compress(plain, 9))
