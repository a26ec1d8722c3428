"""Pictures without what they tell about their maker: EXIF, GPS, MakerNotes, XMP, IPTC, comments, thumbnails, text.

A picture is put together anew from what decoding needs, so that an unknown kind of metadata does not slip
through. Pixels stay as they are, unless the picture had to be turned upright or carries bytes inside its coded part
that no decoder reads.
"""

import io
import struct
import zlib

from PIL import Image

from tasks.imaging.colour_profile import plain_profile
from tasks.imaging.decode import BadImage, Encoded, ImageFacts, jpeg
from tasks.imaging.jpeg_parts import Unusual, needed
from tasks.imaging.png import without_metadata

_UPRIGHT_QUALITY = 95

_ICC = b"ICC_PROFILE\0"
_ICC_PART = 65_519  # bytes of a profile that fit into one segment


def cleaned(data: bytes, turn: bool = True) -> tuple[bytes, ImageFacts]:
    """The same picture without metadata and upright, and its facts; a colour profile stays, reduced to its numbers.

    `turn=False` leaves it as it lies.
    """
    picture = Encoded.open(data)
    picture = picture if turn else picture.as_it_lies()
    is_clean = picture.check()
    if picture.orientation != 1:
        return _redrawn(picture), picture.facts
    if picture.facts.format == "PNG":
        try:
            return without_metadata(data), picture.facts
        except zlib.error:  # all pixels are there; what is wrong lies behind them
            return _redrawn(picture), picture.facts
    return _rebuilt(data, is_clean) or _redrawn(picture), picture.facts


def _rebuilt(data: bytes, is_clean: bool) -> bytes | None:
    """A JPEG anew from what it needs; none where it must be drawn anew."""
    try:
        found = needed(data)
        made = found.file(_icc_segments(found.profile))
        # What a strict decoder stumbles over may be bytes between the pixels' codes, where anything could be kept. If
        # it was something else, it is gone now.
        return made if is_clean or Encoded.open(made).check() else None
    except (Unusual, BadImage):
        return None


def _redrawn(picture: Encoded) -> bytes:
    """Coded anew from its pixels."""
    pixels = picture.pixels()
    if picture.facts.format == "PNG":
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "PNG")
        return out.getvalue()
    made = jpeg(pixels, _UPRIGHT_QUALITY)
    profile = Image.open(io.BytesIO(picture.data)).info.get("icc_profile") if picture.mode == "RGB" else None
    first = 4 + int.from_bytes(made[4:6], "big")  # behind the JFIF header
    return made[:first] + _icc_segments(profile) + made[first:]


def _icc_segments(profile: bytes | None) -> bytes:
    plain = plain_profile(profile) if profile else None
    if not plain:
        return b""
    parts = [plain[at : at + _ICC_PART] for at in range(0, len(plain), _ICC_PART)]
    if len(parts) > 255:
        return b""
    headers = [_ICC + bytes([number, len(parts)]) for number in range(1, len(parts) + 1)]
    return b"".join(
        b"\xff\xe2" + struct.pack(">H", 2 + len(header) + len(part)) + header + part
        for header, part in zip(headers, parts, strict=True)
    )
