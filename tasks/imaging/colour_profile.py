"""ICC colour profiles: reduced to their numbers (no description, copyright, device, maker or date), and applied."""

import io
import struct
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

_HEADER = 128
_MAX_TAGS = 100
_POINTS = (b"wtpt", b"bkpt", b"rXYZ", b"gXYZ", b"bXYZ")
_CURVES = (b"rTRC", b"gTRC", b"bTRC", b"kTRC")
_COLOUR = {b"rXYZ", b"gXYZ", b"bXYZ", b"rTRC", b"gTRC", b"bTRC"}
_PARAMETERS = (1, 3, 4, 5, 7)  # of a curve, by its kind
_LARGEST = 20.0  # of a number that can be; text read as numbers is in the thousands
_NO_DIFFERENCE = 2  # levels of 255 that two ways to compute the same colours may lie apart
_D50 = bytes.fromhex("0000f6d6000100000000d32d")


def plain_profile(profile: bytes) -> bytes | None:
    """The profile with the same colours and fixed texts; none if it is not one of primaries and curves.

    It is written anew from its numbers. Tables of colours, which print profiles have, are left out with their profile:
    they could hold anything, and our decoders do not use them.
    """
    if len(profile) < _HEADER + 4 or profile[36:40] != b"acsp":
        return None
    count = int.from_bytes(profile[_HEADER : _HEADER + 4], "big")
    if count > _MAX_TAGS or len(profile) < _HEADER + 4 + 12 * count:
        return None
    tags: dict[bytes, bytes] = {}
    for name, start, size in struct.iter_unpack(">4sII", profile[_HEADER + 4 : _HEADER + 4 + 12 * count]):
        body = profile[start : start + size]
        if len(body) != size or size < 8:
            return None
        if name in _POINTS or name == b"chad":
            tags[name] = _fixed(body, b"sf32" if name == b"chad" else b"XYZ ", 9 if name == b"chad" else 3) or b""
        elif name in _CURVES:
            tags[name] = _curve(body) or b""
    space, connection = profile[16:20], profile[20:24]
    wanted = _COLOUR if space == b"RGB " else {b"kTRC"}
    is_known = profile[12:16] in (b"mntr", b"scnr", b"prtr", b"spac") and space in (b"RGB ", b"GRAY")
    if not is_known or connection not in (b"XYZ ", b"Lab ") or not all(tags.get(name) for name in wanted):
        return None
    is_v4 = profile[8] >= 4
    tags = {name: body for name, body in tags.items() if body}
    tags |= {b"desc": _description(is_v4), b"cprt": _copyright(is_v4)}  # the standard asks for them
    return _assembled(_header(profile, is_v4), dict(sorted(tags.items())))


def as_srgb(pixels: NDArray[np.uint8], profile: bytes | None) -> NDArray[np.uint8]:
    """RGB pixels in the colours that all programs assume where no profile says otherwise.

    Only a profile that could be written anew is applied; the pixels stay as they are where it is another one, or sRGB.
    """
    plain = plain_profile(profile) if profile and profile[16:20] == b"RGB " else None
    change = _to_srgb(plain) if plain else None
    if change is None:
        return pixels
    return np.array(ImageCms.applyTransform(Image.fromarray(pixels), change))


def cmyk_as_rgb(picture: Image.Image) -> Image.Image:
    """A print's colours on a screen: by its own profile, else by the plain rule that ink takes light away.

    The tables of a print profile are applied here and never stored.
    """
    profile = picture.info.get("icc_profile")
    if profile and profile[16:20] == b"CMYK":
        try:
            given = ImageCms.ImageCmsProfile(io.BytesIO(profile))
            found = ImageCms.profileToProfile(picture, given, ImageCms.createProfile("sRGB"), outputMode="RGB")
        except (ImageCms.PyCMSError, OSError):
            found = None
        if found is not None:
            return found
    return picture.convert("RGB")


@lru_cache(maxsize=16)
def _to_srgb(plain: bytes) -> ImageCms.ImageCmsTransform | None:
    """The way from a profile's colours to sRGB; none if there is nothing to change, or it cannot be applied."""
    levels = np.linspace(0, 255, 9).round().astype(np.uint8)
    probe = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(27, 27, 3)
    try:
        given = ImageCms.ImageCmsProfile(io.BytesIO(plain))
        change = ImageCms.buildTransform(given, ImageCms.createProfile("sRGB"), "RGB", "RGB")
        changed = np.array(ImageCms.applyTransform(Image.fromarray(probe), change))
    except (ImageCms.PyCMSError, OSError):
        return None
    return change if np.abs(changed.astype(int) - probe).max() > _NO_DIFFERENCE else None


def _header(profile: bytes, is_v4: bool) -> bytearray:
    """Only what decides how colours look: kind, colour spaces, intent."""
    header = bytearray(_HEADER)
    header[8:12] = b"\x04\x30\0\0" if is_v4 else b"\x02\x10\0\0"
    header[12:24] = profile[12:24]
    header[36:40] = b"acsp"
    header[67] = profile[67] % 4
    header[68:80] = _D50
    return header


def _fixed(body: bytes, kind: bytes, count: int) -> bytes | None:
    """Numbers of 16 + 16 bits, if they can be."""
    numbers = body[8 : 8 + 4 * count]
    if body[:4] != kind or len(numbers) != 4 * count:
        return None
    if any(abs(n) > _LARGEST * 65_536 for (n,) in struct.iter_unpack(">i", numbers)):
        return None
    return kind + bytes(4) + numbers


def _curve(body: bytes) -> bytes | None:
    """A curve, if it is one: by its parameters, or by points that never fall."""
    if body[:4] == b"para" and len(body) >= 12:
        kind = int.from_bytes(body[8:10], "big")
        count = _PARAMETERS[kind] if kind < len(_PARAMETERS) else 0
        numbers = _fixed(b"sf32" + bytes(4) + body[12:], b"sf32", count) if count else None
        return b"para" + bytes(4) + struct.pack(">HH", kind, 0) + numbers[8:] if numbers else None
    if body[:4] != b"curv" or len(body) < 12:
        return None
    count = int.from_bytes(body[8:12], "big")
    points = body[12 : 12 + 2 * count]
    if len(points) != 2 * count:
        return None
    values = np.frombuffer(points, ">u2").astype(np.int64)
    if count > 1 and (np.diff(values) < 0).any():
        return None
    return b"curv" + bytes(4) + struct.pack(">I", count) + points


def _assembled(header: bytearray, tags: dict[bytes, bytes]) -> bytes:
    places: dict[bytes, int] = {}  # equal bodies (often the three curves) are stored once, as profiles do
    bodies = bytearray()
    start = _HEADER + 4 + 12 * len(tags)
    table = bytearray()
    for name, body in tags.items():
        if body not in places:
            places[body] = start + len(bodies)
            bodies += body + bytes(-len(body) % 4)
        table += struct.pack(">4sII", name, places[body], len(body))
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
