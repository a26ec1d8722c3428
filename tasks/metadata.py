"""Pictures without what they tell about their maker: EXIF, GPS, MakerNotes, XMP, IPTC, comments, thumbnails, text.

What decoding needs is copied, all else is left out: the list says what stays, so that a kind of metadata nobody
thought of does not slip through. Pixels stay as they are, unless the picture had to be turned upright or carries
bytes inside its coded part that no decoder reads.
"""

import io
import struct
import zlib

from PIL import Image

from tasks.colour_profile import plain_profile
from tasks.decode import Encoded, ImageFacts, jpeg
from tasks.png import without_metadata

_UPRIGHT_QUALITY = 95

# Frame headers, Huffman and arithmetic tables, quantization, restart interval, scans. Not the number of lines (DNL):
# our decoders pass over it whatever it holds, so a picture they took does not need it.
_JPEG_KEPT = {*range(0xC0, 0xD0), 0xDA, 0xDB, 0xDD} - {0xC8}
_STANDALONE = {0x01, *range(0xD0, 0xD8)}  # markers without a length
_ICC = b"ICC_PROFILE\0"
_ICC_PART = 65_519  # bytes of a profile that fit into one segment


def strip_exif(data: bytes) -> bytes:
    """The same picture without metadata and upright; a colour profile stays, reduced to its numbers."""
    return cleaned(data)[0]


def cleaned(data: bytes, turn: bool = True) -> tuple[bytes, ImageFacts]:
    """What `strip_exif` and `inspect` give, decoding the picture once for both; `turn=False` leaves it as it lies."""
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
    stripped, has_hidden_bytes = _jpeg(data)
    # What a strict decoder stumbles over may be bytes between the pixels' codes, where anything could be kept.
    return (stripped if is_clean and not has_hidden_bytes else _redrawn(picture)), picture.facts


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


def _jpeg(data: bytes) -> tuple[bytes, bool]:
    """The segments that decoding needs, up to the end marker; and whether bytes lay where no decoder looks."""
    head, kept = bytearray(data[:2]), bytearray()
    profile: dict[int, bytes] = {}
    hidden = False
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            at = data.find(b"\xff", at)
            hidden = True
            if at < 0:
                break
            continue
        marker = data[at + 1]
        if marker == 0xD9:
            break
        if marker in (0x00, 0xFF) or marker in _STANDALONE:  # a fill byte, or nothing that belongs between segments
            at += 1 if marker == 0xFF else 2
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        body = data[at + 4 : end]
        if marker == 0xDA:
            end = _end_of_scan(data, end)
            kept += data[at:end]
        elif marker in _JPEG_KEPT:
            kept += data[at:end]
        elif marker == 0xE0 and body.startswith(b"JFIF\0") and len(body) >= 14:
            head += b"\xff\xe0\x00\x10" + body[:12] + b"\0\0"  # a thumbnail of no size
        elif marker == 0xEE and body.startswith(b"Adobe") and len(body) >= 12:  # how colours are coded
            head += b"\xff\xee\x00\x0e" + body[:12]
        elif marker == 0xE2 and body.startswith(_ICC) and len(body) > 14:
            profile.setdefault(body[12], body[14:])
        at = end
    head += _icc_segments(b"".join(profile[number] for number in sorted(profile)))
    return bytes(head + kept) + b"\xff\xd9", hidden


def _end_of_scan(data: bytes, at: int) -> int:
    while True:
        at = data.find(b"\xff", at)
        if at < 0 or at + 1 >= len(data):
            return len(data)
        follower = data[at + 1]
        if follower not in (0x00, 0xFF) and not 0xD0 <= follower <= 0xD7:  # no stuffed, fill or restart marker
            return at
        at += 1 if follower == 0xFF else 2


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
