"""Pictures without what they tell about their maker: EXIF, GPS, MakerNotes, XMP, IPTC, comments, thumbnails, text.

A JPEG is put together anew from what decoding needs, so that an unknown kind of metadata does not slip through; its
pixels stay as they are, unless it had to be turned upright, is not 8-bit RGB or grey, has a colour profile whose
colours are not sRGB's, or carries bytes inside its coded part that no decoder reads. A PNG is written anew from its
pixels, as RGB with transparent parts on white.
"""

import io
import struct
from dataclasses import dataclass, field

from PIL import Image

from tasks.imaging.colour_profile import as_srgb, changes_colours
from tasks.imaging.decode import BadImage, Encoded, ImageFacts, jpeg

_UPRIGHT_QUALITY = 95


def cleaned(data: bytes, turn: bool = True) -> tuple[bytes, ImageFacts]:
    """The same picture without metadata, upright and in sRGB, and its facts.

    `turn=False` leaves it as it lies.
    """
    picture = Encoded.open(data)
    picture = picture if turn else picture.as_it_lies()
    is_clean = picture.check()
    stays = picture.orientation == 1 and picture.eight_bit_rgb and not changes_colours(picture.profile)
    rebuilt = _rebuilt(data, is_clean) if stays and picture.facts.format == "JPEG" else None
    return rebuilt or _redrawn(picture), picture.facts


def _rebuilt(data: bytes, is_clean: bool) -> bytes | None:
    """A JPEG anew from what it needs; none where it must be drawn anew."""
    try:
        made = needed(data)
        # What a strict decoder stumbles over may be bytes between the pixels' codes, where anything could be kept. If
        # it was something else, it is gone now.
        return made if is_clean or Encoded.open(made).check() else None
    except (Unusual, BadImage):
        return None


def _redrawn(picture: Encoded) -> bytes:
    """Coded anew from its pixels."""
    pixels = as_srgb(picture.pixels(), picture.profile)
    if picture.facts.format == "JPEG":
        return jpeg(pixels, _UPRIGHT_QUALITY)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


JFIF = b"\xff\xe0\x00\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0"  # of no size and without a thumbnail
_ADOBE = b"\xff\xee\x00\x0eAdobe\0\x64\0\0\0\0"  # and how colours are coded
_STANDALONE = {0x01, *range(0xD0, 0xD8)}  # markers without a length
_HUFFMAN_FRAMES = (0xC0, 0xC1, 0xC2)  # sequential, extended, progressive; the other kinds do not occur in photos
_PROGRESSIVE = 0xC2


class Unusual(Exception):
    """Not a JPEG that can be put together faithfully: it is to be drawn anew."""


@dataclass
class _Tables:
    """Tables as they stand at a place in the file, and as they were written last."""

    now: dict[tuple[int, int], bytes] = field(default_factory=dict)  # marker and number -> the table
    written: dict[tuple[int, int], bytes] = field(default_factory=dict)
    restart: int = 0
    restart_written: int = 0

    def read(self, marker: int, body: bytes) -> None:
        at = 0
        while at < len(body):
            head = body[at]
            if marker == 0xDB:
                size = 64 * (1 + (head >> 4))
                number = head & 15
            else:
                size = 16 + sum(body[at + 1 : at + 17])
                number = head
            self.now[marker, number] = body[at : at + 1 + size]
            at += 1 + size

    def take(self, marker: int, number: int) -> bytes:
        """The table as a segment, unless it was written like this before."""
        table = self.now.get((marker, number))
        if table is None or self.written.get((marker, number)) == table:
            return b""
        self.written[marker, number] = table
        return segment(marker, table)

    def take_restart(self) -> bytes:
        if self.restart == self.restart_written:
            return b""
        self.restart_written = self.restart
        return segment(0xDD, struct.pack(">H", self.restart))


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", 2 + len(body)) + body


def needed(data: bytes) -> bytes:
    """What decoding needs of a JPEG that libjpeg has decoded; Unusual where its segments do not tell."""
    tables, out, frame = _Tables(), bytearray(), b""
    frame_marker, scans = 0, 0
    jfif, adobe = b"", b""
    at = 2
    while at + 4 <= len(data):
        marker = data[at + 1]
        if data[at] != 0xFF or marker == 0x00:
            raise Unusual("bytes between segments")
        if marker == 0xD9:
            break
        if marker == 0xFF or marker in _STANDALONE:  # a fill byte, or nothing that belongs between segments
            at += 1 if marker == 0xFF else 2
            continue
        end = at + 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
        body = data[at + 4 : end]
        if marker in (0xDB, 0xC4):
            tables.read(marker, body)
        elif marker == 0xDD:
            tables.restart = int.from_bytes(body[:2], "big")
        elif 0xC0 <= marker <= 0xCF and marker != 0xCC:  # that one conditions arithmetic coding, which is not used
            if marker not in _HUFFMAN_FRAMES:
                raise Unusual("another kind of frame")
            frame_marker, frame = marker, body
        elif marker == 0xDA:
            header, before = _scan(body, frame, frame_marker == _PROGRESSIVE, tables)
            quantization = b"".join(part for part in before if part[1] == 0xDB)
            rest = b"".join(part for part in before if part[1] != 0xDB)
            out += quantization + (b"" if scans else segment(frame_marker, frame)) + rest + tables.take_restart()
            start, end = end, end_of_scan(data, end)
            out += segment(0xDA, header) + data[start:end]
            scans += 1
        elif not scans and marker == 0xE0 and body.startswith(b"JFIF\0") and len(body) >= 14:
            jfif = JFIF
        elif not scans and marker == 0xEE and body.startswith(b"Adobe") and len(body) >= 12:
            adobe = _ADOBE + body[11:12]
        at = end
    return b"\xff\xd8" + jfif + adobe + bytes(out) + b"\xff\xd9"


def _scan(body: bytes, frame: bytes, progressive: bool, tables: _Tables) -> tuple[bytes, list[bytes]]:
    """The scan's header from its numbers, and the tables that must stand before it."""
    count = body[0]
    quantizers = {frame[at]: frame[at + 2] for at in range(6, len(frame), 3)}
    first, last, steps = body[1 + 2 * count :] if progressive else (0, 63, 0)
    with_dc = first == 0 and not (progressive and steps >> 4)
    with_ac = not progressive or first > 0
    header, wanted = bytearray([count]), []
    for at in range(1, 1 + 2 * count, 2):
        component, used = body[at], body[at + 1]
        dc, ac = (used >> 4 if with_dc else 0), (used & 15 if with_ac else 0)
        header += bytes([component, dc << 4 | ac])
        wanted.append(tables.take(0xDB, quantizers[component]))
        wanted.append(tables.take(0xC4, dc) if with_dc else b"")
        wanted.append(tables.take(0xC4, 0x10 | ac) if with_ac else b"")
    return bytes(header) + bytes([first, last, steps]), [part for part in wanted if part]


def end_of_scan(data: bytes, at: int) -> int:
    """Where the next marker stands that ends a scan's coded pixels."""
    while True:
        at = data.find(b"\xff", at)
        if at < 0 or at + 1 >= len(data):
            return len(data)
        follower = data[at + 1]
        if follower not in (0x00, 0xFF) and not 0xD0 <= follower <= 0xD7:  # no stuffed, fill or restart marker
            return at
        at += 1 if follower == 0xFF else 2
