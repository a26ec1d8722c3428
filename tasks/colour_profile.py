"""ICC colour profiles reduced to their numbers: no description, copyright, device, maker or date."""

import struct

_HEADER = 128
_MAX_TAGS = 100
# What a colour engine computes with: white point, adaptation, primaries, curves, tables.
_TAGS = {
    b"wtpt", b"bkpt", b"chad", b"cicp", b"rXYZ", b"gXYZ", b"bXYZ", b"rTRC", b"gTRC", b"bTRC", b"kTRC",
    b"A2B0", b"A2B1", b"A2B2", b"B2A0", b"B2A1", b"B2A2", b"gamt",
}  # fmt: skip
_NUMBERS = {b"XYZ ", b"curv", b"para", b"sf32", b"mft1", b"mft2", b"mAB ", b"mBA ", b"cicp"}  # types without text
# Header fields that decide how colours look; the rest (maker, model, date, creator, …) is zeroed.
_KEPT_FIELDS = ((8, 24), (36, 40), (64, 80))  # version, class, colour spaces; signature; intent, illuminant


def plain_profile(profile: bytes) -> bytes | None:
    """The profile with the same colours and fixed texts; none if it is not one."""
    if len(profile) < _HEADER + 4 or profile[36:40] != b"acsp":
        return None
    count = int.from_bytes(profile[_HEADER : _HEADER + 4], "big")
    if count > _MAX_TAGS or len(profile) < _HEADER + 4 + 12 * count:
        return None
    entries = struct.iter_unpack(">4sII", profile[_HEADER + 4 : _HEADER + 4 + 12 * count])
    tags = {}
    for name, start, size in entries:
        body = profile[start : start + size]
        if len(body) != size or size < 8:
            return None
        if name in _TAGS and body[:4] in _NUMBERS:
            tags[name] = body
    if not tags:
        return None
    is_v4 = profile[8] >= 4
    tags |= {b"desc": _description(is_v4), b"cprt": _copyright(is_v4)}  # the standard asks for them
    return _assembled(profile, dict(sorted(tags.items())))


def _assembled(profile: bytes, tags: dict[bytes, bytes]) -> bytes:
    places: dict[bytes, int] = {}  # equal bodies (often the three curves) are stored once, as profiles do
    bodies = bytearray()
    start = _HEADER + 4 + 12 * len(tags)
    table = bytearray()
    for name, body in tags.items():
        if body not in places:
            places[body] = start + len(bodies)
            bodies += body + bytes(-len(body) % 4)
        table += struct.pack(">4sII", name, places[body], len(body))
    header = bytearray(_HEADER)
    for begin, end in _KEPT_FIELDS:
        header[begin:end] = profile[begin:end]
    header[:4] = struct.pack(">I", start + len(bodies))
    return bytes(header) + struct.pack(">I", len(tags)) + bytes(table) + bytes(bodies)


def _description(is_v4: bool) -> bytes:
    if is_v4:
        return _unicode("colour")
    return b"desc" + bytes(4) + struct.pack(">I", 7) + b"colour\0" + bytes(4 + 4 + 2 + 1 + 67)


def _copyright(is_v4: bool) -> bytes:
    return _unicode("none") if is_v4 else b"text" + bytes(4) + b"none\0"


def _unicode(text: str) -> bytes:
    coded = text.encode("utf-16-be")
    return b"mluc" + bytes(4) + struct.pack(">II2s2sII", 1, 12, b"en", b"US", len(coded), 28) + coded
